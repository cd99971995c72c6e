"""The training run, from start to stop, with its evaluations."""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

from opsctl.integrations.opsctl_contract import TrainFiles
from opsctl.trainer import nan_search, startup_checks
from opsctl.trainer.batches import Batches, Data, ReadAhead
from opsctl.trainer.checkpoint.resume import open_resuming, preview_newest
from opsctl.trainer.checkpoint.save import Checkpoints
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import is_due
from opsctl.trainer.contract import Env, Phase, TrainerStop
from opsctl.trainer.engine import Engine
from opsctl.trainer.heartbeats import Pulse, note, now_text, print_line, warn, write_stop_reason
from opsctl.trainer.loss_spikes import Spikes
from opsctl.trainer.memory_usage import MemoryUsage
from opsctl.trainer.metrics_log import Metrics
from opsctl.trainer.model_size import assumed_save_s, model_parameters
from opsctl.trainer.process_groups import Control, connect, leave
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState
from opsctl.trainer.step_log import Interval, StepLog


class Flag(IntEnum):
    """Index in the vector of flags that all ranks agree on; the first raised flag is the reason to stop."""

    NAN = 0
    KILL = 1
    PAUSE = 2
    STOP_REQUEST = 3
    DEADLINE = 4
    SAVE = 5
    SPIKE = 6


REASONS = {flag: TrainerStop[flag.name] for flag in Flag if flag.name in TrainerStop.__members__}
"""The flags that stop the run, and the reasons, which have the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision that all ranks share after a step."""

    stop: TrainerStop | None = None
    save: bool = False
    spike: bool = False
    """Whether a loss spike began with the last step."""


class Hooks:
    """The files, signals and measurements that request a save or a stop. Only rank 0 polls files."""

    def __init__(
        self, environ: Mapping[str, str], *, polls: bool, margin_s: float, memory: MemoryUsage | None = None
    ) -> None:
        self._polls, self._margin_s = polls, margin_s
        self._problems: list[str] = []
        self._files = TrainFiles(environ, self._problems.append)
        self._memory = memory or MemoryUsage()
        self._signal = ""
        self.detail = ""
        """Detail of the stop reason, as this rank observed it."""

    def catch_signals(self) -> None:
        """Treat SIGTERM and SIGUSR1, which Slurm sends before the end of a job, as requests to save and stop."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def agree(self, group: Control, state: RunState) -> Decision:
        """Return the decision of all ranks, by one small all-reduce: flags of any rank and the fullest memory count."""
        flags = self._collect_flags(state)
        *up, host, gpu = group.highest([*(float(flag in flags) for flag in Flag), *self._memory.measure()])
        stop = next((reason for flag, reason in REASONS.items() if up[flag]), None)
        full = "" if stop else self._memory.describe_excess(host, gpu)
        if full:
            stop = TrainerStop.MEMORY
            self.detail = f"{full} ({', '.join(filter(None, group.gather(self._memory.name_if_full())))})"
        return Decision(stop=stop, save=bool(up[Flag.SAVE]), spike=bool(up[Flag.SPIKE]))

    def _collect_flags(self, state: RunState) -> set[Flag]:
        flags = set()
        if not all(math.isfinite(value) for value in (state.loss, state.grad_norm) if value is not None):
            began = f"; began in {state.fault}" if state.fault else ""
            self.detail = f"loss {state.loss} and gradient norm {state.grad_norm} at step {state.step}{began}"
            flags.add(Flag.NAN)
        if self._signal:
            self.detail = self.detail or f"signal {self._signal}"
            flags.add(Flag.STOP_REQUEST)
        if state.spike:
            flags.add(Flag.SPIKE)
        return flags | self._poll_files(state) if self._polls else flags

    def _poll_files(self, state: RunState) -> set[Flag]:
        reason, detail = self._files.find_stop(
            margin_s=self._margin_s, slowest_step_s=state.slowest_step_s, save_s=state.save_s
        )
        self.detail = self.detail or detail
        up = {flag for flag, stop in REASONS.items() if stop == reason}
        if self._files.is_save_requested():
            up.add(Flag.SAVE)
        for problem in self._problems:
            note(state, problem)
        self._problems.clear()
        return up

    def start_save_request(self) -> None:
        """Remember the save switch as it is now: this save answers it, until the file is touched again."""
        if self._polls:
            self._files.start_save()

    def finish_save_request(self, *, saved: bool) -> None:
        """Remove the save switch if the save succeeded and the file has not been touched since."""
        self._files.finish_save(saved=saved)


def run(config: TrainerConfig, process: RankProcess, environ: Mapping[str, str]) -> NoReturn:
    """Train until the run is finished or must stop, then end the process. Raises Refused before the first step."""
    directory = Path(environ.get(Env.CHECKPOINT_DIR) or config.checkpoint.directory)
    cut, data = startup_checks.check_start(config, process, directory)
    held_out = evaluations(data, cut, process.rank)
    parameters = model_parameters(config.model)
    state = RunState(save_s=assumed_save_s(total_parameters=parameters, ranks=process.world_size))
    pulse = Pulse(environ, process, config)
    pulse.write_heartbeat(Phase.INIT, state)
    control = connect(process, timeout_s=config.parallel.timeout_s)
    memory = startup_checks.memory_limits(config, process)
    hooks = Hooks(environ, polls=process.is_first, margin_s=config.limits.margin_s, memory=memory)

    preview_newest(directory, state)
    reason = hooks.agree(control, state).stop  # a stop that is already requested saves the time to build the model
    if reason is None:
        resuming = open_resuming(directory, config, cut, control)
        found = resuming.find(state, lambda: pulse.write_heartbeat(Phase.INIT, state))
        config = startup_checks.resolve_precision(startup_checks.choose_seed(config, state, control), found, control)
        engine = Engine(config, cut, process.rank, begins=found is None)
        checkpoints = Checkpoints(replace(resuming, config=config), engine, parameters=parameters)
        startup_checks.seed_randomness(config, process)
        if found:
            resuming.load(found, engine, state)
        if uncompiled := engine.compile(config, control):  # the trial compares numbers, and wants the run's weights
            warn(state, process, uncompiled)
        startup_checks.compare_data(data, state, control)
        metrics = Metrics(
            config.log,
            environ,
            step=state.step,
            writes=process.is_last,
            tracks=process.is_first,  # opsctl names the tracker's run to rank 0 alone
            settings=config.model_dump(),
        )
        reason = train(
            Run(
                config=config,
                engine=engine,
                ahead=ReadAhead(data.training(config, data_rank=cut.data_rank(process.rank), data_ranks=cut.data)),
                evaluations=held_out,
                checkpoints=checkpoints,
                control=control,
                hooks=hooks,
                pulse=pulse,
                log=StepLog(config, process.world_size, device=startup_checks.gpu_name()),
                metrics=metrics,
                spikes=Spikes(config.spike),
                state=state,
            )
        )
        metrics.close()
        if reason is TrainerStop.FINISHED:  # other stops are in a hurry, and the next attempt deletes the rest
            checkpoints.close()

    pulse.write_heartbeat(Phase.EXIT, state)
    if process.is_first:
        print_line(f"leaving after step {state.step}: {reason}" + (f" ({hooks.detail})" if hooks.detail else ""))
        write_stop_reason(environ, reason, state, detail=hooks.detail)
    leave(control, 1 if reason in (TrainerStop.NAN, TrainerStop.MEMORY) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The batches of one set. They depend neither on seed nor on layout, so that evaluations can be compared."""

    name: str
    """Name of the set; empty for the held-out samples."""
    batches: Batches
    batch: int
    """Samples of one batch over all ranks."""
    count: int
    """Batches of one evaluation; fewer than configured if the held-out part is smaller."""

    def loss(self, engine: Engine, *, interrupted: Callable[[], bool]) -> float | None:
        """Return the mean loss of learnt tokens, or None if `interrupted` returned true.

        All ranks call `interrupted` before every batch.
        """
        total = shares = 0.0
        for number in range(self.count):
            if interrupted():
                return None
            consumed = number * self.batch
            share = self.batches.learnt_share(consumed, self.batch)
            total += share * engine.evaluate(self.batches.step(consumed, self.batch), batch=self.batch)
            shares += share
        return total / shares if shares else math.nan


def evaluations(data: Data, layout: Layout, rank: int) -> list[Evaluation]:
    """Return the evaluations of this run: the held-out samples, then the sets; none if `evaluation.every` is 0."""
    config, place = data.config, {"data_rank": layout.data_rank(rank), "data_ranks": layout.data}
    if not config.evaluation.every:
        return []
    held_out, batch = sum(part.samples for part in data.held_out), config.batch.global_batch
    found = [("", data.evaluation(**place), held_out)] if held_out else []
    found += [(name, data.evaluation_set(name, **place), part.samples) for name, part in data.sets.items()]
    return [
        Evaluation(name=name, batches=batches, batch=batch, count=min(config.evaluation.batches, samples // batch))
        for name, batches, samples in found
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The objects that the training loop uses."""

    config: TrainerConfig
    engine: Engine
    ahead: ReadAhead
    evaluations: Sequence[Evaluation]
    checkpoints: Checkpoints
    control: Control
    hooks: Hooks
    pulse: Pulse
    log: StepLog
    metrics: Metrics
    spikes: Spikes
    state: RunState


def train(run: Run) -> TrainerStop:
    """Run the training loop: agree on requests, save if due, then stop or take a step."""
    config, state = run.config, run.state
    run.hooks.catch_signals()
    while True:
        _collect_save(run)
        decision = run.hooks.agree(run.control, state)
        if decision.stop is TrainerStop.NAN:  # the state in memory is useless
            run.pulse.write_heartbeat(Phase.SAVE, state)  # a save of an earlier step may be in flight
            _collect_save(run, wait=True)
            return TrainerStop.NAN

        finished = state.step >= config.steps
        save_spike = decision.spike and config.spike.save
        due = decision.save or is_due(state.step, config.checkpoint.every)
        if finished or decision.stop or due or save_spike:
            _save(run, decision, finished=finished)
        if finished:
            return TrainerStop.FINISHED
        if decision.stop:
            return decision.stop

        _step(run)
        if run.evaluations and is_due(state.step, config.evaluation.every):
            _evaluate(run)


def _save(run: Run, decision: Decision, *, finished: bool) -> None:
    """Save a checkpoint. Wait for the whole save before the process ends, otherwise only for the copy of the state."""
    run.pulse.write_heartbeat(Phase.SAVE, run.state)
    _collect_save(run, wait=True)
    if decision.save:
        run.hooks.start_save_request()
    leaving = finished or decision.stop is not None
    reason = run.state.spike if run.config.spike.save else ""
    background = run.config.checkpoint.background and not leaving
    run.state.positions = run.ahead.batches.blend.positions(run.state.consumed_samples)
    run.checkpoints.save(run.state, background=background, keep=reason)
    _collect_save(run, wait=leaving)
    if leaving:
        run.engine.times.write()
    if finished and run.state.checkpoint_step != run.state.step:
        # An error, so that the next attempt trains and saves the last steps again.
        raise RuntimeError(f"the run's last step is not saved: {run.state.notes[-1]}")


def _collect_save(run: Run, *, wait: bool = False) -> None:
    """Collect the result of a save that has ended since the last call; with `wait`, wait for a save in flight."""
    saved = run.checkpoints.collect_save(run.state, wait=wait)
    if saved is not None:
        run.hooks.finish_save_request(saved=saved)


def _step(run: Run) -> None:
    config, state = run.config, run.state
    run.pulse.write_heartbeat(Phase.TRAIN, state)
    started = time.monotonic()
    batch = config.batch.at(state.consumed_samples)
    after = run.ahead.batches.after(state.consumed_samples, batch)
    batches, rate = run.ahead.step(state.consumed_samples, batch), config.rate().at(after)
    if run.engine.reads_data:
        run.ahead.start(after, config.batch.at(after))
    loss, grad_norm = run.engine.step(batches, batch=batch, rate=rate, consumed=state.consumed_samples)
    if math.isnan(grad_norm):
        again = run.ahead.batches.step(state.consumed_samples, batch)
        state.fault = nan_search.find_origin(run.engine, again, consumed=state.consumed_samples, control=run.control)
    seconds = time.monotonic() - started
    state.advance(samples=after - state.consumed_samples, loss=loss, grad_norm=grad_norm, step_s=seconds)
    _log_step(run, run.log.add(state, rate=rate, batch=batch))


def _log_step(run: Run, interval: Interval | None) -> None:
    state = run.state
    if interval:
        if run.control.process.is_last:
            print_line(f" {now_text()}{interval.line()}")
        run.metrics.interval(interval, state)
    state.spike = run.spikes.add_loss(state.loss)
    if state.spike:
        warn(state, run.control.process, f"step {state.step}: {state.spike}")


def _evaluate(run: Run) -> None:
    """Log the loss of every evaluation; abandon the rest when a stop is requested."""

    def interrupted() -> bool:
        run.pulse.write_heartbeat(Phase.EVAL, run.state)
        return run.hooks.agree(run.control, run.state).stop is not None

    for evaluation in run.evaluations:
        loss = evaluation.loss(run.engine, interrupted=interrupted)
        if loss is None:
            return
        if run.control.process.is_last:
            print_line(evaluation_line(run.state.step, loss, evaluation.name))
        run.metrics.evaluation(loss, name=evaluation.name, batches=evaluation.count, state=run.state)


def evaluation_line(step: int, loss: float, name: str = "") -> str:
    """Return the log line of an evaluation, in Megatron's format."""
    perplexity = math.exp(min(20, loss))
    where = f" on {name}" if name else ""
    return f" validation loss at iteration {step}{where} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"
