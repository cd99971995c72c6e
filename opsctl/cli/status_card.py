"""The card of one train: everything that `opsctl status` shows, in as many lines as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.base.model import JobState
from opsctl.base.units import format_count, format_duration
from opsctl.cli.output import cell
from opsctl.monitor.status import Running, TrainStatus
from opsctl.state.switches import Request
from opsctl.telemetry.progress.run_progress import Progress
from opsctl.telemetry.progress.sparkline import BLOCKS, sparkline

STYLES = {
    "running": "green",
    "finished": "green",
    "held": "yellow",
    "queued": "cyan",
    "ended": "red",
    "not submitted": "yellow",
    "unknown": "magenta",
}
ALERT_STYLES = {"critical": "bold red", "warning": "yellow", "unknown": "magenta"}
LABEL_GAP = 2
MIN_TEXT_WIDTH = 20
CURVE_WIDTH = 32
USUAL_PACE_SHARE = 0.02
"""A pace within this share of the median of the run is shown as usual."""


class Rank(IntEnum):
    """What goes first when a small terminal has no room for every line: the highest number."""

    NEEDED = 0
    STATE = 1
    FIGURES = 2
    DETAIL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """One line of the card."""

    label: str
    text: str
    rank: Rank = Rank.STATE
    style: str = ""


def status_block(status: TrainStatus, now: datetime, *, ramp: str = BLOCKS) -> RenderableType:
    """Return the whole card."""
    return _draw(status, card_lines(status, now, ramp=ramp))


def fitted_card(status: TrainStatus, now: datetime, terminal: Console, room: int, *, ramp: str) -> RenderableType:
    """Return the card in at most `room` lines of the terminal: without the least important lines if need be, and with
    the number of those that are missing."""
    lines = card_lines(status, now, ramp=ramp)
    shown, width = list(lines), _text_width(lines, status.train, terminal.width)
    while shown and _count_rows(shown, width) + (len(shown) < len(lines)) > room - 1:
        worst = max(line.rank for line in shown)
        if worst is Rank.NEEDED:
            return _draw(status, shown[: room - 2], left_out=len(lines) - min(len(shown), room - 2), is_cut=True)
        del shown[max(index for index, line in enumerate(shown) if line.rank is worst)]
    return _draw(status, shown, left_out=len(lines) - len(shown))


def _count_rows(lines: Sequence[CardLine], width: int) -> int:
    """Return the number of terminal rows that the lines take."""
    console = Console(width=width)
    return sum(len(cell(line.text).wrap(console, width)) or 1 for line in lines)


def _text_width(lines: Sequence[CardLine], train: str, width: int) -> int:
    label_width = max([cell_len(train), *(2 + cell_len(line.label) for line in lines)])
    return max(MIN_TEXT_WIDTH, width - label_width - LABEL_GAP)


def _draw(status: TrainStatus, lines: Sequence[CardLine], *, left_out: int = 0, is_cut: bool = False) -> RenderableType:
    table = Table.grid(padding=(0, LABEL_GAP))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=is_cut, overflow="ellipsis" if is_cut else "fold")
    table.add_row(cell(status.train, "bold"), Text(status.state, style=STYLES.get(status.state, "")))
    for line in lines:
        table.add_row(f"  {line.label}", cell(line.text, line.style))
    if left_out > 0:
        more = f"{left_out} more line{'s' * (left_out != 1)}: opsctl status {status.train}, or a higher terminal"
        table.add_row("  …", cell(more, "dim"))
    return table


def card_lines(status: TrainStatus, now: datetime, *, ramp: str = BLOCKS) -> list[CardLine]:
    """Return the lines of the card below the name and state, alerts first."""
    lines = [_alert_line(alert.level, alert.summary, alert.acknowledged) for alert in status.alerts]
    if status.stop:
        lines.append(CardLine(label="stop", text=status.stop, rank=Rank.NEEDED, style="yellow"))
    lines += [
        CardLine(label="runs", text=f"{job.job} on {describe_run(job, now)}", rank=Rank.NEEDED)
        for job in status.running or ()
    ]
    lines += [
        CardLine(
            label="waits",
            text=f"{job.tasks} task{'s' * (job.tasks != 1)} of array {job.array}: {job.why}{_from(job.start)}",
        )
        for job in status.waiting or ()
    ]
    lines += _progress(status, now, ramp)
    if status.last_attempt:
        last, is_over = status.last_attempt, not status.running
        text = f"{last.attempt} {last.outcome} {_for(last.at, now)} ago: {last.why}"
        lines.append(CardLine(label="last attempt", text=text, rank=Rank.STATE if is_over else Rank.DETAIL))
        lines += [CardLine(label="advice", text=last.advice)] if last.advice and is_over else []
    lines += [
        CardLine(
            label=f"{armed.switch} switch",
            text=f"armed by {armed.by} {_for(armed.since, now)} ago{f': {armed.why}' if armed.why else ''}",
        )
        for armed in status.switches
    ]
    lines += [CardLine(label="request", text=_request(request, now)) for request in status.requests]
    lines += [CardLine(label="note", text=note, rank=Rank.NEEDED, style="yellow") for note in status.notes]
    return lines + [CardLine(label="run", text=link, rank=Rank.DETAIL) for link in status.links]


def _alert_line(level: str, summary: str, acknowledged: bool) -> CardLine:  # noqa: FBT001 (a field of the alert)
    rank = Rank.DETAIL if acknowledged else Rank.NEEDED
    style = "dim" if acknowledged else ALERT_STYLES.get(level, "")
    return CardLine(label=level, text=f"{summary}{' (acknowledged)' * acknowledged}", rank=rank, style=style)


def _progress(status: TrainStatus, now: datetime, ramp: str) -> list[CardLine]:
    may_run = bool(status.running or (status.running is None and status.begun))
    lines = []
    if status.running is None and status.begun:
        text = f"{status.begun.attempt} on {status.begun.nodes or '?'}, {_for(status.begun.at, now)} ago"
        lines.append(CardLine(label="began", text=text))
    if status.progress:
        figures = {"loss", "speed", "checkpoint"}
        lines += [
            CardLine(label=label, text=text, rank=Rank.FIGURES if label in figures else Rank.STATE)
            for label, text in progress_lines(status.progress, now, is_running=may_run, ramp=ramp)
        ]
    elif status.running:
        lines.append(CardLine(label="progress", text="none yet: neither a heartbeat nor an iteration in its log"))
    return lines


def describe_run(job: Running, now: datetime) -> str:
    """Return nodes, age and time limit of a running task: `node[1-4], 20m, 40m until its limit`."""
    return f"{job.nodes or '?'}, {_for(job.since, now)}{describe_limit(job, now)}"


def describe_limit(job: Running, now: datetime) -> str:
    """Return how far the time limit is, or for how long it is over: Slurm waits for OverTimeLimit and KillWait."""
    if job.state == JobState.COMPLETING.value:  # its end is the moment when Slurm began to end it
        return ", ended, Slurm cleans up"
    if job.ends is None:
        return ""
    distance = format_duration((job.ends - now).total_seconds())
    return f", {distance} until its limit" if job.ends > now else f", {distance} over its limit"


def _request(request: Request, now: datetime) -> str:
    return f"{request.verb} requested by {request.by} {_for(request.since, now)} ago: `opsctl watch` carries it out"


def _for(since: datetime | None, now: datetime) -> str:
    return format_duration((now - since).total_seconds()) if since else "?"


def _from(start: datetime | None) -> str:
    return f", expected to start {start.astimezone():%Y-%m-%d %H:%M}" if start else ""


def progress_lines(progress: Progress, now: datetime, *, is_running: bool, ramp: str) -> list[tuple[str, str]]:
    """Return labels and texts. Facts of a running trainer are left out for others."""
    lines = [
        ("progress", _step(progress, now, is_running=is_running)),
        ("loss", _loss(progress, ramp)),
        ("speed", _speed(progress)),
        ("checkpoint", _checkpoint(progress, now, is_running=is_running)),
        ("left", _left(progress, now)),
        ("trainer", progress.note if is_running else ""),
    ]
    return [(label, text) for label, text in lines if text]


def _step(progress: Progress, now: datetime, *, is_running: bool) -> str:
    parts = [f"step {progress.step}"]
    if progress.last_step:
        parts = [f"step {progress.step} of {progress.last_step}", f"{100 * progress.step / progress.last_step:.3g} %"]
    if progress.tokens:
        parts.append(f"{format_count(progress.tokens)} tokens")
    if is_running and progress.phase not in ("", "train"):
        parts.append(f"in {progress.phase}")
    if is_running and progress.at and (now - progress.at).total_seconds() > 60:
        parts.append(f"last heartbeat {format_duration((now - progress.at).total_seconds())} ago")
    return " · ".join(parts)


def _loss(progress: Progress, ramp: str) -> str:
    if progress.loss is None:
        return ""
    curve = sparkline(progress.losses, CURVE_WIDTH, ramp=ramp)
    since = f"{curve} since step {progress.losses_from}" if curve else ""
    return f"{progress.loss:.4g}  {since}".rstrip()


def _speed(progress: Progress) -> str:
    """Compare TFLOPs with the median of the run; without TFLOPs, the step time.

    TFLOPs do not change with the batch size.
    """
    parts = []
    if progress.step_s:
        parts.append(
            f"{progress.step_s:.3g} s a"
            f" step{'' if progress.tflops else _compare(progress.step_s, progress.usual_step_s)}"
        )
    if progress.tflops:
        parts.append(f"{progress.tflops:.3g} TFLOPs{_compare(progress.tflops, progress.usual_tflops)}")
    return " · ".join(parts)


def _compare(recent: float, usual: float | None) -> str:
    if not usual:
        return ""
    share = recent / usual - 1
    if abs(share) < USUAL_PACE_SHARE:
        return " (as usual)"
    return f" ({100 * abs(share):.0f} % {'above' if share > 0 else 'below'} the run's median of {usual:.3g})"


def _checkpoint(progress: Progress, now: datetime, *, is_running: bool) -> str:
    ago = f", {format_duration((now - progress.checkpoint_at).total_seconds())} ago" if progress.checkpoint_at else ""
    parts = [f"at step {progress.checkpoint_step}{ago}"] if progress.checkpoint_step is not None else []
    if is_running and progress.next_save:
        steps = progress.next_save - progress.step
        when = f", in {format_duration(progress.next_save_s)}" if progress.next_save_s else ""
        parts.append(f"next at {progress.next_save}, in {steps} step{'s' * (steps != 1)}{when}")
    return "; ".join(parts) or ("none yet" if is_running else "")


def _left(progress: Progress, now: datetime) -> str:
    if progress.left is None or not progress.left.likely:
        return ""
    left = progress.left
    text = f"{format_duration(left.likely)}, until {_at(now, left.likely)}"
    if left.late - left.early >= 60:
        text += f" ({_at(now, left.early)} to {_at(now, left.late)} in 8 of 10 cases)"
    if left.attempts:
        waits = "" if left.late > left.training else ", queue waits unknown"
        text += f"; {left.attempts} more task{'s' * (left.attempts != 1)}{waits}"
    return text


def _at(now: datetime, seconds: float) -> str:
    return f"{(now + timedelta(seconds=seconds)).astimezone():%Y-%m-%d %H:%M}"
