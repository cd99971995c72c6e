"""`opsctl cron status`: what ran when, with what result, and when it runs next."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, tzinfo

import click
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.cli.output import console, json_option, print_json, print_table
from opsctl.cron.cron_status import CronStatus, EntryStatus, read_cron_status

STYLES = {"ok": "green", "running": "cyan", "": "dim"}


@click.command()
@json_option
@click.pass_obj
def status(app: App, *, as_json: bool) -> int:
    """Who ticks, and for each entry: when it ran, for how long, with what result, and when it runs next. Exit 1 where
    ticks should come and do not.

    \b
    opsctl cron status
    """
    seen = read_cron_status(app.cron)
    if as_json:
        print_json(asdict(seen))
    else:
        for line in _head(seen, app.clock.now()):
            console().print(line)
        print_table(_table(seen, app.cron.zone))
        if any(each.output for each in seen.entries):
            console().print(f"what they printed: {app.cron.place.output}", style="dim")
    return int(seen.is_overdue)


def _head(seen: CronStatus, now: datetime) -> list[Text]:
    lines = [Text(seen.driver or "nobody ticks: opsctl cron start", style="" if seen.driver else "yellow")]
    if seen.last_tick:
        ago = max(0.0, (now - seen.last_tick).total_seconds())  # written by a node, by its own clock
        late = "; that is too long ago: opsctl cron start" if seen.is_overdue else ""
        lines.append(
            Text(f"last tick {ago:.0f} s ago, one is due every {seen.every} s{late}", style="red" if late else "")
        )
    return lines + [Text(problem, style="red") for problem in seen.problems]


def _table(seen: CronStatus, zone: tzinfo) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("entry", "when", "ran", "took", "result", "next"):
        table.add_column(name, overflow="fold")
    for each in seen.entries:
        table.add_row(*_row(each, zone))
    return table


def _row(each: EntryStatus, zone: tzinfo) -> list[Text]:
    words = " ".join(filter(None, (each.result, each.detail, each.output))) or "not yet"
    return [
        Text(each.id), Text(each.when), Text(_time(each.started, zone)),
        Text(f"{each.seconds:.3g} s" if each.started else ""), Text(words, style=STYLES.get(each.result, "red")),
        Text(_time(each.next, zone) or "never"),
    ]  # fmt: skip


def _time(at: datetime | None, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}" if at else ""
