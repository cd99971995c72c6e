"""The card of one train: everything that `opsctl status` shows, in as many lines as there is room for."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.model import JobState
from opsctl.base.units import format_count, format_duration
from opsctl.cli.output import cell
from opsctl.monitor.status import Running, TrainStatus
from opsctl.telemetry.progress.run_progress import Progress

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
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""Signs for terminals whose encoding has no block characters."""
BEYOND = {BLOCKS: "↓↑", ASCII: "v^"}
"""The marks for values below and above the scale."""
MIN_COLUMNS_FOR_HALF = 8
"""Half of a shorter curve is too little for a scale: all its values define the scale."""
BROKEN = "x"
"""The sign for nan and infinite values."""
CURVE_WIDTH = 32
USUAL_PACE_SHARE = 0.02
"""A pace within this share of the median of the run is shown as usual."""


class Rank(IntEnum):
    """What goes first when a small terminal has no room for every line: the highest number."""

    NEEDED = 0
    STATE = 1
    FIGURES = 2
    DETAIL = 3


@dataclass(frozen=True, slots=True)
class CardLine:
    label: str
    text: str
    rank: Rank = Rank.STATE
    style: str = ""


def status_block(status: TrainStatus, now: datetime, *, ramp: str = BLOCKS) -> RenderableType:
    return _draw(status, card_lines(status, now, ramp=ramp))


def fitted_card(status: TrainStatus, now: datetime, terminal: Console, room: int, *, ramp: str) -> RenderableType:
    """Return the card in at most `room` lines of the terminal: without the least important lines if need be, and with
    the number of those that are missing."""
    lines = card_lines(status, now, ramp=ramp)
    shown, card = list(lines), _draw(status, lines)
    while shown and count_rows(card, terminal) > room:
        worst = max(line.rank for line in shown)
        if worst is Rank.NEEDED:
            return _draw(status, shown[: room - 2], left_out=len(lines) - min(len(shown), room - 2), is_cut=True)
        del shown[max(index for index, line in enumerate(shown) if line.rank is worst)]
        card = _draw(status, shown, left_out=len(lines) - len(shown))
    return card


def count_rows(shown: RenderableType, terminal: Console) -> int:
    """Return the number of terminal rows that something takes."""
    return len(terminal.render_lines(shown, pad=False))


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
    lines = [_describe_alert(alert) for alert in status.alerts]
    if status.stop:
        lines.append(CardLine("stop", status.stop, Rank.NEEDED, "yellow"))
    for job in status.running or ():
        text = f"{job.job} on {job.nodes or '?'}, {_for(job.since, now)}{describe_limit(job, now)}{job.in_place}"
        lines.append(CardLine("runs", text, Rank.NEEDED))
    for waiting in status.waiting or ():
        tasks = f"{waiting.tasks} task{'s' * (waiting.tasks != 1)} of array {waiting.array}"
        start = f", expected to start {waiting.start.astimezone():%Y-%m-%d %H:%M}" if waiting.start else ""
        lines.append(CardLine("waits", f"{tasks}: {waiting.why}{start}"))
    lines += [*_progress(status, now, ramp), *_last_attempt(status, now)]
    for armed in status.switches:
        text = f"armed by {armed.by} {_for(armed.since, now)} ago{f': {armed.why}' if armed.why else ''}"
        lines.append(CardLine(f"{armed.switch} switch", text))
    for request in status.requests:
        text = f"{request.verb} requested by {request.by} {_for(request.since, now)} ago"
        lines.append(CardLine("request", f"{text}: `opsctl watch` carries it out"))
    lines += [CardLine("note", note, Rank.NEEDED, "yellow") for note in status.remarks]
    return lines + [CardLine("run", link, Rank.DETAIL) for link in status.links]


def _describe_alert(alert: OpenAlert) -> CardLine:
    if alert.acknowledged:
        return CardLine(alert.severity, f"{alert.summary} (acknowledged)", Rank.DETAIL, "dim")
    return CardLine(alert.severity, alert.summary, Rank.NEEDED, ALERT_STYLES.get(alert.severity, ""))


def _last_attempt(status: TrainStatus, now: datetime) -> Iterator[CardLine]:
    last, is_over = status.last_attempt, not status.running
    if last:
        text = f"{last.attempt} {last.outcome} {_for(last.at, now)} ago: {last.why}"
        yield CardLine("last attempt", text, Rank.STATE if is_over else Rank.DETAIL)
        if last.advice and is_over:
            yield CardLine("advice", last.advice)


def _progress(status: TrainStatus, now: datetime, ramp: str) -> list[CardLine]:
    """Return the lines about the progress. Facts of a running trainer are left out for others."""
    may_run = bool(status.running or (status.running is None and status.begun))
    lines = []
    if status.running is None and status.begun:
        text = f"{status.begun.attempt} on {status.begun.nodes or '?'}, {_for(status.begun.at, now)} ago"
        lines.append(CardLine("began", text))
    progress = status.progress
    if progress:
        lines += [
            CardLine("progress", _step(progress, now, is_running=may_run)),
            CardLine("loss", _loss(progress, ramp), Rank.FIGURES),
            CardLine("speed", _speed(progress), Rank.FIGURES),
            CardLine("checkpoint", _checkpoint(progress, now, is_running=may_run), Rank.FIGURES),
            CardLine("left", _left(progress, now)),
            CardLine("trainer", progress.note if may_run else ""),
        ]
    elif status.running:
        lines.append(CardLine("progress", "none yet: neither a heartbeat nor an iteration in its log"))
    return [line for line in lines if line.text]


def describe_limit(job: Running, now: datetime) -> str:
    """Return how far the time limit is, or for how long it is over: Slurm waits for OverTimeLimit and KillWait."""
    if job.state == JobState.COMPLETING.value:  # its end is the moment when Slurm began to end it
        return ", ended, Slurm cleans up"
    if job.ends is None:
        return ""
    distance = format_duration((job.ends - now).total_seconds())
    return f", {distance} until its limit" if job.ends > now else f", {distance} over its limit"


def _for(since: datetime | None, now: datetime) -> str:
    return format_duration((now - since).total_seconds()) if since else "?"


def _step(progress: Progress, now: datetime, *, is_running: bool) -> str:
    parts = [progress.place.replace(",", "")]
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
        compared = "" if progress.tflops else _compare(progress.step_s, progress.usual_step_s)
        parts.append(f"{progress.step_s:.3g} s a step{compared}")
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
    newest = f"at step {progress.checkpoint_step}" if progress.checkpoint_step is not None else progress.found_instead
    parts = [f"{newest}{ago}"] if newest else []
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


def sparkline(values: Sequence[float], width: int, *, ramp: str = BLOCKS) -> str:
    """Return `values` as at most `width` signs; empty for fewer than two.

    The scale of a long curve is that of its last half: where a loss has fallen from 11 to 2.5, the fall from 2.6 to 2.5
    still shows.
    Earlier values beyond the scale have marks of their own, so that no sign has two meanings.
    """
    if len(values) < 2:
        return ""
    # Of each share, a nan or infinite value, else the highest: no spike is lost.
    columns = [
        max(share, key=lambda value: (not math.isfinite(value), value))
        for share in _shares(values, min(width, len(values)))
    ]
    half = columns[len(columns) // 2 :] if len(columns) >= MIN_COLUMNS_FOR_HALF else columns
    known = [column for column in half if math.isfinite(column)] or list(filter(math.isfinite, columns))
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_sign(column, low, high, ramp) for column in columns)


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """Split `values` into `count` runs of nearly the same length."""
    ends = [round(n * len(values) / count) for n in range(count + 1)]
    return [values[begin:end] for begin, end in pairwise(ends)]


def _sign(value: float, low: float, high: float, ramp: str) -> str:
    if not math.isfinite(value):
        return BROKEN
    if not low <= value <= high:
        return BEYOND[ramp][value > high]
    share = (value - low) / (high - low) if high > low else 0.5
    return ramp[min(len(ramp) - 1, int(share * len(ramp)))]
