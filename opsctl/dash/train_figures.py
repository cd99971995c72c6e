"""The figures of one train: end, checkpoint, loss and throughput. Only a running train has present values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from opsctl.base.units import format_count, format_duration
from opsctl.dash.queue_end import QueueEnd
from opsctl.dash.show_times import format_ago, format_day_time
from opsctl.dash.train_headline import name_holder
from opsctl.monitor.status import TrainStatus
from opsctl.report.scales import Scale, loss_scale
from opsctl.state.journal import TrainHistory
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.run_progress import Progress

RECENT_LINES = 20
"""Newest lines for the median of the throughput."""
NO_BREAK = "\u00a0"
WIDTH, HEIGHT = 200.0, 40.0
"""Size in units of the drawing, which the browser stretches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """The drawing of some values, the oldest first."""

    path: str
    area: str
    """The path, closed at the bottom."""
    gaps: tuple[float, ...]
    """Where a value is nan or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure with its name; `detail` qualifies the value."""

    name: str
    value: str
    detail: str = ""
    curve: Sparkline | None = None
    kind: str = ""
    """CSS class of the curve."""
    is_unknown: bool = False
    is_time: bool = False
    """Whether the value is the time at which the train ends, and not why there is none."""


def list_figures(
    status: TrainStatus,
    history: TrainHistory,
    lines: Sequence[Iteration],
    queue_end: QueueEnd | None,
    now: datetime,
) -> list[Figure]:
    progress = status.progress
    is_live = status.state == "running"
    ago = format_ago(now, progress.at) if progress and progress.at and not is_live else ""
    return [
        _describe_end(status, history, queue_end, now),
        _describe_checkpoint(progress, now, status.state),
        _describe_loss(progress, lines, ago, is_live=is_live),
        _describe_throughput(progress, lines, ago, is_live=is_live),
    ]


def _describe_end(status: TrainStatus, history: TrainHistory, queue_end: QueueEnd | None, now: datetime) -> Figure:
    """Return the end of the run, or why it has none: the slot is never empty."""
    left = status.progress.left if status.progress else None
    if status.state == "finished":
        return Figure(name="Ends", value="Finished")
    if status.state == "held":
        return Figure(name="Ends", value="No ETA: held", detail=f"held by {name_holder(status, history)}")
    if status.state not in {"running", "queued"}:
        return Figure(name="Ends", value=f"No ETA: {status.state}")
    if left is None or not left.likely:
        return Figure(name="Ends", value="No ETA yet", detail="the last step or the step time is unknown")
    ends = format_day_time(now, now + timedelta(seconds=left.likely))
    if queue_end:
        return Figure(name="Ends", value=ends, is_time=True, detail=f"if {queue_end.missing} more tasks are queued")
    early, late = (format_day_time(now, now + timedelta(seconds=bound)) for bound in (left.early, left.late))
    detail = f"{early} – {late}" if left.late - left.early >= 60 else f"in {format_duration(left.likely)}"
    return Figure(name="Ends", value=ends, is_time=True, detail=detail)


def _describe_checkpoint(progress: Progress | None, now: datetime, state: str) -> Figure:
    if progress is None:
        return Figure(name="Checkpoint", value="unknown", is_unknown=True)
    age = format_ago(now, progress.checkpoint_at) if progress.checkpoint_at else "age unknown"
    if progress.checkpoint_step is None:
        found, doubt = progress.checkpoint_note, progress.checkpoint_doubt
        return Figure(name="Checkpoint", value=found or "none yet", detail=doubt or (age if found else ""))
    soon = f"next in {format_duration(progress.next_save_s)}" if progress.next_save_s else ""
    if state != "running":
        soon = f"no checkpoint while {state}" if state in {"held", "queued"} else ""
    detail = " · ".join(filter(None, (age, soon)))
    return Figure(name="Checkpoint", value=f"step {progress.checkpoint_step:,}", detail=detail)


def _describe_loss(progress: Progress | None, lines: Sequence[Iteration], ago: str, *, is_live: bool) -> Figure:
    values = [line.loss for line in lines if line.loss is not None]
    loss = progress.loss if progress else None
    first = next((line.step for line in lines if line.loss is not None), None)
    value = f"{loss:.4g}" if loss is not None else "unknown"
    return Figure(
        name="Loss",
        value=value if is_live or loss is None else f"last {value}",
        detail=ago or (f"since step {first:,}" if first is not None else ""),
        curve=draw_sparkline(values, is_loss=True),
        kind="loss",
        is_unknown=loss is None,
    )


def throughput_of(line: Iteration) -> float | None:
    """Return samples a second of one line, or steps a second without a known batch; None without a step time."""
    if not line.step_s or not math.isfinite(line.step_s) or line.step_s <= 0:
        return None
    return (line.global_batch or 1) / line.step_s


def _describe_throughput(progress: Progress | None, lines: Sequence[Iteration], ago: str, *, is_live: bool) -> Figure:
    rates = [rate for rate in map(throughput_of, lines) if rate is not None]
    if not rates:
        return Figure(name="Throughput", value="unknown", is_unknown=True)
    unit = "samples/s" if lines[-1].global_batch else "steps/s"
    rate = median(rates[-RECENT_LINES:])
    value = f"{format_count(rate) if rate >= 1000 else f'{rate:.3g}'}{NO_BREAK}{unit}"
    details = [f"{progress.tflops:.3g}{NO_BREAK}TFLOP/s/GPU"] if progress and progress.tflops else []
    details += [f"{progress.step_s:.3g}{NO_BREAK}s/step"] if progress and progress.step_s else []
    return Figure(
        name="Throughput",
        value=value if is_live else f"last {value}",
        detail=" · ".join(details) if is_live else ago,
        curve=draw_sparkline(rates),
        kind="pace",
    )


def draw_sparkline(values: Sequence[float], *, is_loss: bool = False) -> Sparkline | None:
    """Return the drawing; None for fewer than two finite values. A loss that fell far gets a logarithmic scale."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    # A change of less than a tenth of the value must not look like a cliff.
    margin = max((high - low) * 0.1, abs(high) * 0.05) or 1.0
    y = loss_scale(low, high)[0] if is_loss else Scale(low=low - margin, high=high + margin)
    places = [WIDTH * number / (len(values) - 1) for number in range(len(values))]
    runs: list[list[str]] = [[]]
    for x, value in zip(places, values, strict=True):
        if math.isfinite(value):
            runs[-1].append(f"{x:.1f} {HEIGHT * (1 - y.at(value)):.1f}")
        elif runs[-1]:
            runs.append([])
    lines = [run for run in runs if run]
    return Sparkline(
        path=" ".join(f"M{' L'.join(run)}" for run in lines),
        area=" ".join(_close(run) for run in lines),
        gaps=tuple(round(x, 1) for x, value in zip(places, values, strict=True) if not math.isfinite(value)),
    )


def _close(run: list[str]) -> str:
    first, last = run[0].partition(" ")[0], run[-1].partition(" ")[0]
    return f"M{first} {HEIGHT:g} L{' L'.join(run)} L{last} {HEIGHT:g} Z"
