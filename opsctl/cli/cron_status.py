"""`opsctl cron status`: last runs, results and next runs of cron entries."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, tzinfo

import click
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.base.units import format_duration
from opsctl.cli.output import console, json_option, print_json, print_table
from opsctl.cron.cron_status import CronStatus, EntryStatus, read_cron_status

STYLES = {"ok": "green", "running": "cyan", "": "dim"}


@click.command()
@json_option
@click.pass_obj
def status(app: App, *, as_json: bool) -> int:
    """Show the driver and the schedule of cron.

    For each entry: last run, duration, result and next run. Exit 1 if ticks are overdue.

    \b
    opsctl cron status
    """
    cron_status = read_cron_status(app.cron)
    if as_json:
        print_json(asdict(cron_status))
    else:
        for line in _head(cron_status, app.clock.now()):
            console().print(line)
        print_table(_table(cron_status, app.cron.zone))
        if any(entry.output for entry in cron_status.entries):
            console().print(f"output of entries: {app.cron.place.output}", style="dim")
    return int(cron_status.is_overdue)


def _head(status: CronStatus, now: datetime) -> list[Text]:
    lines = [Text(status.driver or "cron is not started: opsctl cron start", style="" if status.driver else "yellow")]
    if status.last_tick:
        ago = max(0.0, (now - status.last_tick).total_seconds())  # a node wrote the time, by its own clock
        late = "; overdue: opsctl cron start" if status.is_overdue else ""
        line = f"last tick {format_duration(ago)} ago, due every {format_duration(status.every)}{late}"
        lines.append(Text(line, style="red" if late else ""))
    return lines + [Text(problem, style="red") for problem in status.problems]


def _table(status: CronStatus, zone: tzinfo) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("entry", "when", "ran", "took", "result", "next"):
        table.add_column(name, overflow="fold")
    for entry in status.entries:
        table.add_row(*_row(entry, zone))
    return table


def _row(entry: EntryStatus, zone: tzinfo) -> list[Text]:
    words = " ".join(filter(None, (entry.result, entry.detail, entry.output))) or "not yet"
    return [
        Text(entry.id),
        Text(entry.when),
        Text(_time(entry.started, zone)),
        Text(format_duration(entry.seconds) if entry.started else ""),
        Text(words, style=STYLES.get(entry.result, "red")),
        Text(_time(entry.next, zone) or "never"),
    ]


def _time(at: datetime | None, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}" if at else ""
