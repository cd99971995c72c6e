"""The training run, from start to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from trainer import flops, nanguard, schedule
from trainer.checkpoint.resuming import foresee
from trainer.checkpoint.saving import Checkpoints, open_checkpoints
from trainer.config import TrainerConfig
from trainer.contract import Env, Phase, Reason
from trainer.data import Batches, Corpus
from trainer.engine import Engine
from trainer.errors import Refused
from trainer.hooks import Decision, Hooks
from trainer.layout import Layout, check_layout, layout
from trainer.order import Order
from trainer.parallel import Control, connect, leave
from trainer.process import Process
from trainer.report import Pulse, StepLog, say, write_stop_reason
from trainer.state import State


def run(config: TrainerConfig, process: Process, environ: Mapping[str, str]) -> NoReturn:
    """Train until the run is finished or something asks to stop; ends the process. Raises Refused before the start."""
    cut = _checked_layout(config, process)
    batches = _batches(config, cut, process)
    state = State(save_s=flops.assumed_save_s(total_parameters=_parameters(config), ranks=process.world_size))
    pulse = Pulse(environ, process, config)
    pulse.beat(Phase.INIT, state)
    control = connect(process, timeout_s=config.parallel.timeout_s)
    hooks = Hooks(environ, polls=process.is_first, margin_s=config.limits.margin_s)
    directory = Path(environ.get(Env.CHECKPOINT_DIR) or config.checkpoint.directory)

    foresee(directory, state)
    reason = hooks.agree(control, state).stop  # asked already: then it is cheaper not to build the model at all
    if reason is None:
        engine = Engine(config, cut, process.rank)
        checkpoints = open_checkpoints(
            directory, config, cut, engine, control, parameters=_parameters(config)
        )
        torch.manual_seed(config.seed * 1_000_003 + process.rank)
        checkpoints.resume(state)
        reason = train(
            Run(
                config=config,
                engine=engine,
                batches=batches,
                checkpoints=checkpoints,
                control=control,
                hooks=hooks,
                pulse=pulse,
                log=StepLog(config, process.world_size),
                state=state,
            )
        )

    pulse.beat(Phase.EXIT, state)
    if process.is_first:
        say(f"leaving after step {state.step}: {reason}" + (f" ({hooks.detail})" if hooks.detail else ""))
        write_stop_reason(environ, reason, state, detail=hooks.detail)
    leave(control, 1 if reason is Reason.NAN else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the loop works with."""

    config: TrainerConfig
    engine: Engine
    batches: Batches
    checkpoints: Checkpoints
    control: Control
    hooks: Hooks
    pulse: Pulse
    log: StepLog
    state: State


def train(run: Run) -> Reason:
    """The loop: agree on what is asked, save where it is due, leave or take a step."""
    config, state = run.config, run.state
    run.hooks.catch_signals()
    while True:
        _settle(run)
        decision = run.hooks.agree(run.control, state)
        if decision.stop is Reason.NAN:  # what is in memory now is worth nothing
            _settle(run, wait=True)
            return Reason.NAN

        finished = state.step >= config.steps
        if finished or decision.stop or decision.save or schedule.is_due(state.step, config.checkpoint.every):
            _save(run, decision, finished=finished)
        if finished:
            return Reason.FINISHED
        if decision.stop:
            return decision.stop

        _step(run)


def _save(run: Run, decision: Decision, *, finished: bool) -> None:
    """Save; before leaving until it is done, else until the state is copied."""
    run.pulse.beat(Phase.SAVE, run.state)
    _settle(run, wait=True)
    if decision.save:
        run.hooks.take_save()
    leaving = finished or decision.stop is not None
    run.checkpoints.save(run.state, background=run.config.checkpoint.background and not leaving)
    _settle(run, wait=leaving)
    if finished and run.state.checkpoint_step != run.state.step:
        # Not finished, then: the next life trains and saves the last steps again.
        raise RuntimeError(f"the run's last step is not saved: {run.state.notes[-1]}")


def _settle(run: Run, *, wait: bool = False) -> None:
    """Take in what became of a save that ended since the last look, or that one waits for."""
    saved = run.checkpoints.settle(run.state, wait=wait)
    if saved is not None:
        run.hooks.answer_save(saved=saved)


def _step(run: Run) -> None:
    config, state = run.config, run.state
    run.pulse.beat(Phase.TRAIN, state)
    started = time.monotonic()
    rate = config.rate().at(state.consumed_samples + config.batch.global_batch)
    batches = run.batches.step(state.consumed_samples, run.engine.accumulation)
    loss, grad_norm = run.engine.step(batches, rate=rate, consumed=state.consumed_samples)
    if math.isnan(grad_norm):
        again = run.batches.step(state.consumed_samples, run.engine.accumulation)
        state.fault = nanguard.where(run.engine, again, consumed=state.consumed_samples, control=run.control)
    seconds = time.monotonic() - started
    state.advance(samples=config.batch.global_batch, loss=loss, grad_norm=grad_norm, step_s=seconds)
    line = run.log.add(state, rate=rate)
    if line and run.control.process.is_last:
        say(line)


def _checked_layout(config: TrainerConfig, process: Process) -> Layout:
    problems = check_layout(config, process.world_size)
    if problems:
        raise Refused("; ".join(problems))
    return layout(config, process.world_size)


def _batches(config: TrainerConfig, cut: Layout, process: Process) -> Batches:
    corpus, sequence = Corpus(config.data.prefix), config.model.sequence
    samples = corpus.samples(sequence)
    if samples == 0:
        raise Refused(f"corpus {corpus.prefix} has {len(corpus.tokens)} tokens, too few for one sample of {sequence}")
    return Batches(
        corpus=corpus,
        order=Order(samples=samples, seed=config.seed),
        sequence=sequence,
        vocabulary=config.model.vocabulary,
        micro_batch=config.batch.micro_batch,
        data_rank=cut.data_rank(process.rank),
        data_ranks=cut.data,
    )


def _parameters(config: TrainerConfig) -> int:
    model = config.model
    return flops.parameters(
        layers=model.layers, hidden=model.hidden, sequence=model.sequence, vocabulary=model.vocabulary
    )
