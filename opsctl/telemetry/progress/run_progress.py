"""How far a run is: from its heartbeat, and from a look at its log that costs the same however long that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from opsctl.calc.throughput import Eta, time_left
from opsctl.errors import InputError
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.eta import median_step_s
from opsctl.telemetry.progress.iteration_lines import Iteration, sampled, tail
from opsctl.telemetry.progress.next_save import predict_next_save
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat

CURVE = 240
"""Iterations at the end of the log that the curve of the loss is drawn from."""
RECENT = 50
"""Of these, those that the usual time of a step is taken from."""
LATELY = 20
"""And those that are held against the median of the whole run."""
LONGEST_S = 1e10
"""What takes three centuries is a number that some log made up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPace:
    """What must be known of the tasks to reckon when the run will be done. Seconds."""

    task_s: float = math.inf
    """The longest that one may take."""
    running_s: float = 0.0
    """What the running one still has; 0 if none runs."""
    waits_s: Sequence[float] = ()
    """Between tasks, as they were so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    step: int
    last_step: int | None
    loss: float | None
    losses: tuple[float, ...]
    """Of the newest lines of the log, each step once, the oldest first."""
    losses_from: int | None
    """The step of the first of them."""
    tokens: int | None
    step_s: float | None
    """The median of the latest."""
    usual_step_s: float | None
    """The median over the whole run, of steps with the same batch."""
    tflops: float | None
    """Of each GPU: the median of the latest few."""
    usual_tflops: float | None
    """The median over the whole run."""
    phase: str
    at: datetime | None
    """When the trainer last said so, by its own clock; without a heartbeat, when its log was last written to."""
    note: str
    """What the trainer says went wrong and does not stop it."""
    checkpoint_step: int | None
    """The newest checkpoint."""
    checkpoint_at: datetime | None
    """When that was written; None where it cannot be seen."""
    next_save: int | None
    """The step of the next one."""
    next_save_s: float | None
    left: Eta | None
    """Seconds to the last step; None where that, or the time of a step, is not known, or nothing is to run."""


def read_progress(run: RunDir, *, attempt: str = "", begin: int = 0, pace: TaskPace | None = None) -> Progress | None:
    """None while neither the trainer nor its log has said anything that can be understood.

    `attempt` is the one that runs, if any, and `begin` how long its log was when it began: what was said before tells
    nothing of how far it is. Without a `pace` no time left is reckoned.
    """
    heartbeat = _read_heartbeat(run.heartbeat / "train.json")
    placed = tail(run.main_log, CURVE)
    if heartbeat is None and not placed:
        return None
    lines = [iteration for _, iteration in placed]
    line = lines[-1] if lines else Iteration(step=0)
    is_behind = bool(
        heartbeat
        and heartbeat.attempt == attempt
        and heartbeat.phase is not Phase.INIT
        and placed
        and placed[-1][0] < begin
    )
    step = _step(heartbeat, line, is_behind=is_behind)
    last_step = (heartbeat and heartbeat.last_steps) or line.last
    step_s = median_step_s(lines[-RECENT:]) or (heartbeat.step_s if heartbeat else None)
    whole = sampled(run.main_log) if lines else []
    curve = [
        drop_repeated_step
        for drop_repeated_step in drop_repeated_steps(lines)
        if drop_repeated_step.loss is not None and drop_repeated_step.step <= step
    ]
    saved = predict_next_save(run, step, last_step, newest=heartbeat.checkpoint_step if heartbeat else None)
    return Progress(
        step=step,
        last_step=last_step,
        loss=line.loss if line.loss is not None and not is_behind else (heartbeat.loss if heartbeat else None),
        losses=tuple(each.loss for each in curve if each.loss is not None),
        losses_from=curve[0].step if curve else None,
        tokens=line.tokens,
        step_s=step_s,
        usual_step_s=median_step_s(each for each in whole if each.global_batch == line.global_batch),
        tflops=_median(each.tflops for each in lines[-LATELY:]),
        usual_tflops=_median(each.tflops for each in whole),
        phase=heartbeat.phase.value if heartbeat else "",
        at=_time(heartbeat.at if heartbeat else _written(run.main_log)),
        note=heartbeat.note if heartbeat and isinstance(heartbeat.note, str) else "",
        checkpoint_step=saved.newest,
        checkpoint_at=saved.at,
        next_save=saved.next,
        next_save_s=(saved.next - step) * step_s if saved.next and step_s else None,
        left=_left(step, last_step, step_s, pace) if pace else None,
    )


def _read_heartbeat(path: Path) -> Heartbeat | None:
    """The heartbeat, if what it says of steps and time are numbers."""
    heartbeat = read_heartbeat(path)
    steps = (heartbeat.step, heartbeat.last_steps, heartbeat.checkpoint_step) if heartbeat else ()
    figures = (heartbeat.at, heartbeat.loss, heartbeat.step_s) if heartbeat else ()
    is_sound = all(step is None or type(step) is int for step in steps) and all(
        figure is None or type(figure) in (int, float) for figure in figures
    )
    return heartbeat if is_sound else None


def _step(heartbeat: Heartbeat | None, line: Iteration, *, is_behind: bool) -> int:
    """The later of the two: log lines come at intervals, and a trainer that starts does not know its step yet. But a
    trainer that has begun anew from an earlier checkpoint is behind the last line of the attempt before it."""
    if heartbeat and is_behind:
        return heartbeat.step
    return max(heartbeat.step if heartbeat else 0, line.step)


def drop_repeated_steps(lines: Sequence[Iteration]) -> list[Iteration]:
    """Without what was done again later, after a start from an earlier checkpoint, and so counts no more."""
    iterations: list[Iteration] = []
    for line in reversed(lines):
        if not iterations or line.step < iterations[-1].step:
            iterations.append(line)
    return iterations[::-1]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    return median(known) if known else None


def _time(at: float | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC) if at is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def _written(log: Path) -> float | None:
    try:
        return log.stat().st_mtime
    except OSError:
        return None


def _left(step: int, last: int | None, step_s: float | None, pace: TaskPace) -> Eta | None:
    if not last or step_s is None or not math.isfinite(step_s) or step_s <= 0:
        return None
    try:
        left = time_left(
            steps=max(0, last - step), step_s=step_s, attempt_s=pace.task_s, running_s=pace.running_s,
            waits_s=pace.waits_s,
        )  # fmt: skip
    except InputError:
        return None
    return left if left.late < LONGEST_S else None
