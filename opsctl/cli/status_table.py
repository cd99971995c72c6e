"""All trains, one line each: the state, the progress, and the one fact that matters most."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import shorten

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.units import format_duration
from opsctl.cli.output import cell
from opsctl.cli.status_card import ALERT_STYLES, STYLES, describe_limit
from opsctl.monitor.status import LastAttempt, TrainStatus

COLUMNS = ("train", "state", "done", "left", "step", "loss", "now")
DISPENSABLE = ("loss", "step", "left")
"""Columns that a narrow terminal leaves out, the first one first."""
MIN_FACT_WIDTH = 28
MAX_FACT_CHARS = 120
GAP = 2
QUIET = {"running", "finished", "queued"}
"""States that need no action."""


def train_row(status: TrainStatus, now: datetime) -> dict[str, str]:
    """Return the cells of one train by column."""
    progress = status.progress
    cells = dict.fromkeys(COLUMNS, "")
    cells |= {"train": status.train, "state": status.state, "now": main_fact(status, now)}
    if progress is None:
        return cells
    cells["step"] = str(progress.step) if progress.epoch is None and progress.is_step_known else progress.place
    if progress.last_step:
        cells["done"] = f"{100 * progress.step / progress.last_step:.3g} %"
    if progress.loss is not None:
        cells["loss"] = f"{progress.loss:.4g}"
    if progress.left is not None and progress.left.likely:
        cells["left"] = format_duration(progress.left.likely)
    return cells


def main_fact(status: TrainStatus, now: datetime) -> str:
    """Return what matters most about a train now, apart from its alerts. The card of the train shows all of it."""
    return shorten(next((text for text in _facts(status, now) if text), ""), MAX_FACT_CHARS, placeholder="…")


def _facts(status: TrainStatus, now: datetime) -> Iterator[str]:
    """Yield the facts about a train, the most important first; an empty text for one that does not apply."""
    yield f"stop {status.stop}" if status.stop else ""
    for armed in status.switches if status.state != "ended" else ():
        yield f"{armed.switch} switch armed by {armed.by} {format_duration(now - armed.since)} ago"
    for request in status.requests:
        yield f"{request.verb} requested by {request.by} {format_duration(now - request.since)} ago"
    for job in status.running or ():
        yield f"on {job.nodes or '?'}{describe_limit(job, now)}{job.in_place}"
    if status.state == "held" and status.last_attempt:
        yield _ended(status.last_attempt, now)
    yield from (waiting.why for waiting in status.waiting or ())
    yield from status.remarks
    if status.begun:
        yield f"{status.begun.attempt} began {format_duration(now - status.begun.at)} ago"
    yield _ended(status.last_attempt, now) if status.last_attempt else ""


def _ended(last: LastAttempt, now: datetime) -> str:
    return f"{last.outcome} {format_duration(now - last.at)} ago: {last.why}"


def needs_attention(status: TrainStatus) -> bool:
    """Return whether a person should look at the train."""
    has_open_alert = any(alert.is_loud for alert in status.alerts)
    return has_open_alert or bool(status.stop or status.requests) or status.state not in QUIET


def draw_table(statuses: Sequence[TrainStatus], now: datetime, terminal: Console, room: int | None) -> RenderableType:
    """Return the table, of at most `room` lines. Where there is less room, the trains that need attention stay."""
    shown = list(statuses)
    if room is not None and len(statuses) + 1 > room:
        chosen = sorted(statuses, key=lambda status: not needs_attention(status))[: max(1, room - 2)]
        shown = [status for status in statuses if status in chosen]
    rows = [train_row(status, now) for status in shown]
    widths = choose_columns(rows, terminal.width)
    table = Table.grid(padding=(0, GAP))
    for width in widths.values():
        table.add_column(no_wrap=True, overflow="ellipsis", width=width)
    table.add_row(*(Text(name, "dim") for name in widths))
    for row, status in zip(rows, shown, strict=True):
        styles = {"train": "bold", "state": STYLES.get(status.state, "")}
        table.add_row(*(cell(row[name], styles.get(name, "")) for name in widths))
    hidden = Counter(status.state for status in statuses if status not in shown)
    if not hidden:
        return table
    states = ", ".join(f"{count} {state}" for state, count in hidden.items())
    return Group(table, Text(f"and {hidden.total()} more: {states}", "dim"))


def choose_columns(rows: Sequence[dict[str, str]], width: int) -> dict[str, int]:
    """Return the columns that hold something, with their widths. Only the fact is cut on a narrow terminal."""
    filled = [name for name in COLUMNS if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(cell_len(row[name]) for row in rows)) for name in filled if name != "now"}
    for name in DISPENSABLE:
        if width - sum(widths.values()) - GAP * len(widths) < MIN_FACT_WIDTH:
            widths.pop(name, None)
    return {**widths, "now": max(1, width - sum(widths.values()) - GAP * len(widths))}


def alert_texts(alerts: Sequence[OpenAlert], room: int | None = None) -> list[Text]:
    """Return the open alerts that are not acknowledged or silenced, the worst first; few of them are not cut."""
    loud = [alert for alert in alerts if alert.is_loud]
    is_wrapped = room is None or 2 * len(loud) <= room
    texts = []
    for alert in loud[: room if room is None or len(loud) <= room else room - 1]:
        prefix = f"{alert.train}: " if alert.train and not alert.names_train else ""
        text = cell(f"{alert.severity.upper()}  {prefix}{alert.summary}", ALERT_STYLES.get(alert.severity, ""))
        text.no_wrap, text.overflow = not is_wrapped, "fold" if is_wrapped else "ellipsis"
        texts.append(text)
    if len(texts) < len(loud):
        texts.append(Text(f"and {len(loud) - len(texts)} more alerts: opsctl alerts list", "dim"))
    return texts
