"""The training run, from start to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from opsctl.trainer import flops, nan_search, schedule
from opsctl.trainer.batches import Batches
from opsctl.trainer.checkpoint.resume import foresee
from opsctl.trainer.checkpoint.save import Checkpoints, open_checkpoints
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Env, Phase, TrainerStop
from opsctl.trainer.engine import Engine
from opsctl.trainer.evaluate import Evaluation, evaluation, line
from opsctl.trainer.footprint import model_parameters
from opsctl.trainer.heartbeats import Pulse, now_text, say, write_stop_reason
from opsctl.trainer.loss_spikes import Spikes
from opsctl.trainer.metrics_log import Metrics
from opsctl.trainer.process_groups import Control, connect, leave
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState
from opsctl.trainer.startup_checks import (
    checked,
    compare_data,
    device_name,
    memory_limits,
    settle_randomness,
    settle_seed,
)
from opsctl.trainer.step_log import Interval, StepLog
from opsctl.trainer.stop_hooks import Decision, Hooks


def run(config: TrainerConfig, process: RankProcess, environ: Mapping[str, str]) -> NoReturn:
    """Train until the run is finished or something asks to stop; ends the process. Raises Refused before the start."""
    directory = Path(environ.get(Env.CHECKPOINT_DIR) or config.checkpoint.directory)
    cut, data = checked(config, process, directory)
    held_out = evaluation(data, cut, process.rank)
    parameters = model_parameters(config.model)
    state = RunState(save_s=flops.assumed_save_s(total_parameters=parameters, ranks=process.world_size))
    pulse = Pulse(environ, process, config)
    pulse.write_heartbeat(Phase.INIT, state)
    control = connect(process, timeout_s=config.parallel.timeout_s)
    memory = memory_limits(config, process)
    hooks = Hooks(environ, polls=process.is_first, margin_s=config.limits.margin_s, memory=memory)

    foresee(directory, state)
    reason = hooks.agree(control, state).stop  # asked already: then it is cheaper not to build the model at all
    if reason is None:
        config = settle_seed(config, state, control)
        engine = Engine(config, cut, process.rank)
        checkpoints = open_checkpoints(directory, config, cut, engine, control, parameters=parameters)
        settle_randomness(config, process)
        checkpoints.resume(state)
        compare_data(data, state, control)
        metrics = Metrics(config.log, environ, step=state.step, writes=process.is_last)
        reason = train(
            Run(
                config=config,
                engine=engine,
                batches=data.training(config, data_rank=cut.data_rank(process.rank), data_ranks=cut.data),
                evaluation=held_out,
                checkpoints=checkpoints,
                control=control,
                hooks=hooks,
                pulse=pulse,
                log=StepLog(config, process.world_size, device=device_name()),
                metrics=metrics,
                spikes=Spikes(config.spike),
                state=state,
            )
        )
        metrics.close()

    pulse.write_heartbeat(Phase.EXIT, state)
    if process.is_first:
        say(f"leaving after step {state.step}: {reason}" + (f" ({hooks.detail})" if hooks.detail else ""))
        write_stop_reason(environ, reason, state, detail=hooks.detail)
    leave(control, 1 if reason in (TrainerStop.NAN, TrainerStop.MEMORY) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the loop works with."""

    config: TrainerConfig
    engine: Engine
    batches: Batches
    evaluation: Evaluation | None
    checkpoints: Checkpoints
    control: Control
    hooks: Hooks
    pulse: Pulse
    log: StepLog
    metrics: Metrics
    spikes: Spikes
    state: RunState


def train(run: Run) -> TrainerStop:
    """The loop: agree on what is asked, save where it is due, leave or take a step."""
    config, state = run.config, run.state
    run.hooks.catch_signals()
    while True:
        _settle(run)
        decision = run.hooks.agree(run.control, state)
        if decision.stop is TrainerStop.NAN:  # what is in memory now is worth nothing
            run.pulse.write_heartbeat(Phase.SAVE, state)  # of an earlier step, and perhaps under way
            _settle(run, wait=True)
            return TrainerStop.NAN

        finished = state.step >= config.steps
        kept = decision.spike and config.spike.save
        due = decision.save or schedule.is_due(state.step, config.checkpoint.every)
        if finished or decision.stop or due or kept:
            _save(run, decision, finished=finished)
        if finished:
            return TrainerStop.FINISHED
        if decision.stop:
            return decision.stop

        _step(run)
        if run.evaluation and schedule.is_due(state.step, config.evaluation.every):
            _evaluate(run, run.evaluation)


def _save(run: Run, decision: Decision, *, finished: bool) -> None:
    """Save; before leaving until it is done, else until the state is copied."""
    run.pulse.write_heartbeat(Phase.SAVE, run.state)
    _settle(run, wait=True)
    if decision.save:
        run.hooks.take_save()
    leaving = finished or decision.stop is not None
    kept = run.state.spike if run.config.spike.save else ""
    run.checkpoints.save(run.state, background=run.config.checkpoint.background and not leaving, keep=kept)
    _settle(run, wait=leaving)
    if finished and run.state.checkpoint_step != run.state.step:
        # Not finished, then: the next attempt trains and saves the last steps again.
        raise RuntimeError(f"the run's last step is not saved: {run.state.notes[-1]}")


def _settle(run: Run, *, wait: bool = False) -> None:
    """Take in what became of a save that ended since the last look, or that one waits for."""
    saved = run.checkpoints.settle(run.state, wait=wait)
    if saved is not None:
        run.hooks.answer_save(saved=saved)


def _step(run: Run) -> None:
    config, state = run.config, run.state
    run.pulse.write_heartbeat(Phase.TRAIN, state)
    started = time.monotonic()
    batch = config.batch.ramp().at(state.consumed_samples)
    after = run.batches.after(state.consumed_samples, batch)
    batches, rate = run.batches.step(state.consumed_samples, batch), config.rate().at(after)
    loss, grad_norm = run.engine.step(batches, batch=batch, rate=rate, consumed=state.consumed_samples)
    if math.isnan(grad_norm):
        again = run.batches.step(state.consumed_samples, batch)
        state.fault = nan_search.where(run.engine, again, consumed=state.consumed_samples, control=run.control)
    seconds = time.monotonic() - started
    state.advance(samples=after - state.consumed_samples, loss=loss, grad_norm=grad_norm, step_s=seconds)
    _tell(run, run.log.add(state, rate=rate, batch=batch))


def _tell(run: Run, interval: Interval | None) -> None:
    state = run.state
    if interval and run.control.process.is_last:
        say(f" {now_text()}{interval.line()}")
        run.metrics.interval(interval, state)
    state.spike = run.spikes.add_loss(state.loss)
    if state.spike:
        state.notes.append(f"step {state.step}: {state.spike}")
        if run.control.process.is_first:
            say(state.notes[-1])


def _evaluate(run: Run, evaluation: Evaluation) -> None:
    """Tell the loss on what is held out, unless something asks to stop meanwhile."""

    def interrupted() -> bool:
        run.pulse.write_heartbeat(Phase.EVAL, run.state)
        return run.hooks.agree(run.control, run.state).stop is not None

    loss = evaluation.loss(run.engine, interrupted=interrupted)
    if loss is not None and run.control.process.is_last:
        say(line(run.state.step, loss))
        run.metrics.evaluation(loss, batches=evaluation.count, state=run.state)
