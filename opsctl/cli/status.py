"""`opsctl status`: the state of all trains, from one query of Slurm."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from opsctl.actions.find_statuses import find_statuses
from opsctl.alerts.ledger_files import open_alerts
from opsctl.app import App
from opsctl.base.errors import RunDirError, Unreachable
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import app_and_json, console, optional_train, print_json, print_on_stderr, to_json, wants_json
from opsctl.cli.status_card import ASCII, BLOCKS, count_rows, fitted_card, status_block
from opsctl.cli.status_table import alert_texts, draw_table
from opsctl.monitor.status import TrainStatus
from opsctl.state.run_dir import all_trains, find_entries_skipped

FOOTER_LINES = 1
MAX_SKIPPED = 5
"""Entries of the root that are named although they are no trains."""


@click.command()
@optional_train
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@dependent_option(
    "--every",
    only_with=("--watch",),
    type=INTERVAL,
    default="10s",
    show_default=True,
    help="Time between two refreshes.",
)
@click.option("--full", is_flag=True, help="Show every train as a card, not as one line.")
@click.option("--read-only", is_flag=True, help="Carry out no armed switch and no overdue cron tick.")
@app_and_json
def status(app: App, train: str | None, *, watch: bool, every: timedelta, full: bool, read_only: bool) -> int:
    """Show the state, progress and time left of trains.

    Shows several trains in one line each, below the open alerts. Shows TRAIN, or the only train, as a card: alerts,
    running and queued tasks, pending reason, step, loss, speed, next checkpoint and time left. If Slurm does not
    answer, shows what the run directories record; exit 75.

    \b
    opsctl status
    opsctl status tiny-gpt --watch
    opsctl status --json | jq '.[].progress.step'
    opsctl status --json --watch --every 1m >> status.jsonl
    """
    terminal = console()
    app = app.as_viewer() if watch else app

    def read() -> list[TrainStatus]:
        runs = [app.find(train)] if train else all_trains(app.root)
        return find_statuses(app, runs, is_named=bool(train), show=print_on_stderr, acts=not read_only)

    if watch:
        _watch(app, read, terminal, every.total_seconds(), is_full=full)
    statuses = read()
    away = next((train_status.slurm for train_status in statuses if train_status.slurm), "")
    if not wants_json():
        terminal.print(_page(statuses, app, terminal, is_full=full))
        if not train:
            _print_skipped(app)
        return Unreachable.exit_code if away else 0
    print_json(statuses)
    if away:
        raise Unreachable(away)
    return 0


def _print_skipped(app: App) -> None:
    """Print which entries of the root are no trains although they look like trains."""
    if skipped := find_entries_skipped(app.root):
        more = f"; and {len(skipped) - MAX_SKIPPED} more" if len(skipped) > MAX_SKIPPED else ""
        print_on_stderr(f"opsctl: skipped in {app.root}: {'; '.join(skipped[:MAX_SKIPPED])}{more}")


def _watch(app: App, read: Callable[[], list[TrainStatus]], terminal: Console, every: float, *, is_full: bool) -> None:
    """Refresh until Ctrl-C: in place on a terminal, otherwise page after page or one JSON line after the other."""
    as_json = wants_json()
    with Live(console=terminal, auto_refresh=False) if terminal.is_terminal and not as_json else nullcontext() as live:
        while True:
            try:
                statuses = read()
            except RunDirError as error:  # the file system may answer again
                print_on_stderr(f"opsctl: {error.message}; again in {every:g} s")
                app.clock.sleep(every)
                continue
            if as_json:
                click.echo(to_json(statuses, indent=None))
            elif live:
                page = _page(statuses, app, terminal, is_full=is_full, height=terminal.height - FOOTER_LINES)
                queue_at = app.shared_queue.at or app.clock.now()
                footer = f"queue of {queue_at.astimezone():%H:%M:%S}, again every {every:g} s; Ctrl-C ends it"
                live.update(Group(page, Text(footer, "dim")), refresh=True)
            else:
                terminal.print(_page(statuses, app, terminal, is_full=is_full))
            app.clock.sleep(every)


def _page(
    statuses: list[TrainStatus], app: App, terminal: Console, *, is_full: bool, height: int | None = None
) -> RenderableType:
    """Return the page: why Slurm is silent, open alerts, then one line per train, or the card of one.

    `is_full`: a card for every train. `height`: lines of the terminal for the page; None for any number.
    """
    if not statuses:
        return Text(f"no trains below {app.root}; opsctl launch TRAIN.toml starts one")
    now, ramp = app.clock.now(), ASCII if terminal.options.ascii_only else BLOCKS
    head = [
        Text(f"{text}; showing what the run directories record", "yellow")
        for text in {status.slurm for status in statuses}
        if text
    ]
    if is_full or len(statuses) == 1:
        if len(statuses) > 1 or height is None:
            return Group(*head, *(status_block(status, now, ramp=ramp) for status in statuses))
        return Group(
            *head, fitted_card(statuses[0], now, terminal, height - count_rows(Group(*head), terminal), ramp=ramp)
        )
    head += alert_texts(open_alerts(app.alert_ledger, now), None if height is None else max(1, height // 3))
    room = None if height is None else height - count_rows(Group(*head), terminal)
    return Group(*head, draw_table(statuses, now, terminal, room))
