"""What the page shows of one train in the overview: headline, figures, curves and alerts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from opsctl.alerts.open_alerts import OpenAlert
from opsctl.dash.sparklines import Sparkline, draw_sparkline
from opsctl.dash.train_headline import Headline, write_headline
from opsctl.monitor.status import TrainStatus
from opsctl.nodesets import expand
from opsctl.state.journal import Event, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import Iteration, recent_iterations
from opsctl.telemetry.progress.run_progress import CURVE_LINES, Progress, drop_repeated_steps
from opsctl.telemetry.progress.train_settings import read_step_pattern
from opsctl.units import format_count, format_duration

RECENT_LINES = 20
"""Newest lines for the median of the throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure with its name; `detail` qualifies the value."""

    name: str
    value: str
    detail: str = ""
    curve: Sparkline | None = None
    kind: str = ""
    """CSS class of the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCard:
    """One train of the overview."""

    name: str
    state: str
    headline: Headline
    why: str
    """Where the headline comes from: the last attempt, or the worst alert."""
    advice: str
    """What to do now."""
    share: float | None
    """Progress from 0 to 1; None if unknown."""
    step: str
    figures: tuple[Figure, ...]
    alerts: tuple[OpenAlert, ...]
    notes: tuple[str, ...]
    links: tuple[str, ...]
    marks: tuple[str, ...]
    """Armed switches and waiting requests."""
    nodes: tuple[str, ...]
    """The nodes of the running task."""
    verbs: tuple[str, ...]
    """The actions that make sense now."""

    @property
    def open_key(self) -> str:
        """The key of the worst alert that nobody has acknowledged; empty without any."""
        return next((alert.key for alert in self.alerts if not alert.acknowledged), "")


def make_card(run: RunDir, status: TrainStatus, events: Sequence[Event], now: datetime) -> TrainCard:
    """Return the card of a train from its status, its journal and the end of its log."""
    history = replay(list(events))
    headline = write_headline(status, history)
    progress = status.progress
    lines = drop_repeated_steps(recent_iterations(run.main_log, CURVE_LINES, read_step_pattern(run)))
    why, advice = _explain(status, headline, now)
    return TrainCard(
        name=status.train,
        state=status.state,
        headline=headline,
        why=why,
        advice=advice,
        share=_share(progress),
        step=_describe_step(progress),
        figures=tuple(_list_figures(status, progress, lines, now)),
        alerts=status.alerts,
        notes=status.notes,
        links=status.links,
        marks=tuple(_list_marks(status)),
        nodes=tuple(expand(status.running[0].nodes)) if status.running else (),
        verbs=tuple(_list_verbs(status)),
    )


def _explain(status: TrainStatus, headline: Headline, now: datetime) -> tuple[str, str]:
    """Return why the train is in its state, and what to do; both empty for a train that is well."""
    last = status.last_attempt
    if headline.word in {"HELD", "ENDED"} and last:
        why = f"attempt {last.attempt} {last.outcome}: {last.why}"
        return ("" if last.why in headline.text else why), last.advice
    if status.alerts and headline.rank < 3:
        alert = status.alerts[0]
        state = " · acknowledged" if alert.acknowledged else ""
        return f"{alert.level} for {format_age(now - datetime.fromisoformat(alert.since))}: {alert.key}{state}", ""
    return "", ""


def _share(progress: Progress | None) -> float | None:
    return min(1.0, progress.step / progress.last_step) if progress and progress.last_step else None


def _describe_step(progress: Progress | None) -> str:
    if progress is None:
        return "step unknown"
    of = f" of {progress.last_step:,}" if progress.last_step else ""
    return f"step {progress.step:,}{of}"


def _list_figures(
    status: TrainStatus, progress: Progress | None, lines: Sequence[Iteration], now: datetime
) -> list[Figure]:
    return [
        _describe_end(status, progress, now),
        _describe_checkpoint(progress, now),
        _describe_loss(progress, lines),
        _describe_throughput(progress, lines),
    ]


def _describe_end(status: TrainStatus, progress: Progress | None, now: datetime) -> Figure:
    left = progress.left if progress else None
    if status.state == "finished":
        return Figure(name="Ends", value="finished")
    if status.state == "held":
        return Figure(name="Ends", value="after a release")
    if left is None or not left.likely:
        return Figure(name="Ends", value="unknown", detail="needs a pace and a queued task")
    bounds = f"{_format_end(now, left.early)} – {_format_end(now, left.late)}"
    detail = bounds if left.late - left.early >= 60 else f"in {format_duration(left.likely)}"
    return Figure(name="Ends", value=_format_end(now, left.likely), detail=detail)


def _format_end(now: datetime, seconds: float) -> str:
    """Return a coming local time as short as its distance allows: `14:05`, `Tue 14:05`, `24 Nov`, `Mar 2027`."""
    at, today = (now + timedelta(seconds=seconds)).astimezone(), now.astimezone()
    if at.date() == today.date():
        return f"{at:%H:%M}"
    if seconds < 6 * 86400:
        return f"{at:%a %H:%M}"
    return f"{at.day} {at:%b}" if seconds < 300 * 86400 else f"{at:%b %Y}"


def _describe_checkpoint(progress: Progress | None, now: datetime) -> Figure:
    if progress is None or progress.checkpoint_step is None:
        return Figure(name="Checkpoint", value="none yet" if progress else "unknown")
    age = f"{format_age(now - progress.checkpoint_at)} ago" if progress.checkpoint_at else "age unknown"
    soon = f", next in {format_age(progress.next_save_s)}" if progress.next_save_s else ""
    return Figure(name="Checkpoint", value=f"step {progress.checkpoint_step:,}", detail=f"{age}{soon}")


def _describe_loss(progress: Progress | None, lines: Sequence[Iteration]) -> Figure:
    values = [line.loss for line in lines if line.loss is not None]
    loss = progress.loss if progress else None
    first = next((line.step for line in lines if line.loss is not None), None)
    return Figure(
        name="Loss",
        value=f"{loss:.4g}" if loss is not None else "unknown",
        detail=f"since step {first:,}" if first is not None else "",
        curve=draw_sparkline(values, is_loss=True),
        kind="loss",
    )


def throughput_of(line: Iteration) -> float | None:
    """Return samples a second of one line, or steps a second without a known batch; None without a step time."""
    if not line.step_s or not math.isfinite(line.step_s) or line.step_s <= 0:
        return None
    return (line.global_batch or 1) / line.step_s


def _describe_throughput(progress: Progress | None, lines: Sequence[Iteration]) -> Figure:
    rates = [rate for rate in map(throughput_of, lines) if rate is not None]
    if not rates:
        return Figure(name="Throughput", value="unknown")
    unit = "samples/s" if lines[-1].global_batch else "steps/s"
    details = [f"{progress.tflops:.3g} TFLOPs a GPU"] if progress and progress.tflops else []
    details += [f"{progress.step_s:.3g} s a step"] if progress and progress.step_s else []
    return Figure(
        name="Throughput",
        value=f"{format_rate(median(rates[-RECENT_LINES:]))} {unit}",
        detail=" · ".join(details),
        curve=draw_sparkline(rates),
        kind="pace",
    )


def format_rate(rate: float) -> str:
    return format_count(rate) if rate >= 1000 else f"{rate:.3g}"


def format_age(seconds: float | timedelta) -> str:
    """Return a duration in one unit, for a glance: `40 s`, `12 min`, `5 h`, `3 d`."""
    amount = max(0.0, seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    for size, unit in ((172800, "d"), (7200, "h"), (90, "min")):
        if amount >= size:
            return f"{round(amount / {'d': 86400, 'h': 3600, 'min': 60}[unit])} {unit}"
    return f"{round(amount)} s"


def _list_marks(status: TrainStatus) -> list[str]:
    marks = [
        f"{armed.switch} switch armed by {armed.by}{f': {armed.why}' if armed.why else ''}" for armed in status.switches
    ]
    return marks + [f"{request.verb} requested by {request.by}" for request in status.requests]


def _list_verbs(status: TrainStatus) -> list[str]:
    verbs = ["ack", "silence"] if any(not alert.acknowledged for alert in status.alerts) else []
    is_paused = any(armed.switch == "pause" for armed in status.switches)
    if status.state == "held" or is_paused:
        verbs.append("release")
    elif status.waiting:
        verbs.append("hold")
    return verbs + (["save"] if status.state in {"running", "queued"} else [])
