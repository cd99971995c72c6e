"""`opsctl status`: the state of all trains, from one query of Slurm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opsctl.alerts.open_alerts import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import cell, console, finite, in_json, json_option, optional_train, print_json
from opsctl.cli.owner_tasks import apply_armed_switches, keep_cron
from opsctl.cli.progress_lines import progress_lines
from opsctl.errors import OpsctlError, Unreachable
from opsctl.model import Job
from opsctl.monitor.status import TrainStatus, read_status, unreadable
from opsctl.state.run_dir import RunDir, all_trains, find_entries_skipped
from opsctl.telemetry.progress.sparkline import ASCII, BLOCKS
from opsctl.units import format_duration

SLURM = "slurm/site"
"""Key of the alert that Slurm does not answer."""
MAX_SKIPPED = 5
"""Entries of the root that are named although they are no trains."""
STYLES = {
    "running": "green",
    "finished": "green",
    "held": "yellow",
    "queued": "cyan",
    "ended": "red",
    "not submitted": "yellow",
    "unknown": "magenta",
}


@click.command()
@optional_train
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--every", type=INTERVAL, default="10s", show_default=True, help="Time between two refreshes.")
@json_option
@click.pass_obj
def status(app: App, train: str | None, *, watch: bool, every: timedelta, as_json: bool) -> int:
    """Show the state, progress and time left of trains.

    For TRAIN, or every train: running and queued tasks, pending reason, step, loss, speed, next checkpoint and time
    left. If Slurm does not answer, shows what the run directories record; exit 75.

    \b
    opsctl status
    opsctl status tiny-gpt --watch
    opsctl status --json | jq '.[].progress.step'
    opsctl status --json --watch --every 1m >> status.jsonl
    """
    terminal = console()
    if watch:
        _watch(app, train, terminal, every.total_seconds(), as_json=as_json)
    statuses = _statuses(app, train)
    away = next((train_status.slurm for train_status in statuses if train_status.slurm), "")
    if not as_json:
        terminal.print(_page(statuses, app, terminal))
        if not train:
            _print_skipped(app)
        return Unreachable.exit_code if away else 0
    print_json(_as_data(statuses))
    if away:
        raise Unreachable(away)
    return 0


def _print_skipped(app: App) -> None:
    """Print which entries of the root are no trains although they look like trains."""
    if skipped := find_entries_skipped(app.root):
        more = f"; and {len(skipped) - MAX_SKIPPED} more" if len(skipped) > MAX_SKIPPED else ""
        click.echo(f"opsctl: skipped in {app.root}: {'; '.join(skipped[:MAX_SKIPPED])}{more}", err=True)


def _watch(app: App, train: str | None, terminal: Console, every: float, *, as_json: bool) -> None:
    """Refresh until Ctrl-C: in place on a terminal, otherwise page after page or one JSON line after the other."""
    with Live(console=terminal, auto_refresh=False) if terminal.is_terminal and not as_json else nullcontext() as live:
        while True:
            statuses = _statuses(app, train)
            if as_json:
                click.echo(json.dumps(_as_data(statuses), default=in_json, ensure_ascii=False))
            elif live:
                page = _page(statuses, app, terminal)
                live.update(Group(page, _footer(app.clock.now(), every)), refresh=True)
            else:
                terminal.print(_page(statuses, app, terminal))
            app.clock.sleep(every)


def _as_data(statuses: list[TrainStatus]) -> object:
    return finite([asdict(status) for status in statuses])


def _footer(now: datetime, every: float) -> RenderableType:
    return Text(f"{now.astimezone():%H:%M:%S}, again every {every:g} s; Ctrl-C ends it", style="dim")


def _statuses(app: App, train: str | None) -> list[TrainStatus]:
    runs = [app.find(train)] if train else all_trains(app.root)
    alerts = open_alerts(app.site_dir.alerts / "ledger.json")
    jobs, away = _queue(app, alerts) if runs else ([], "")
    if jobs is not None:
        keep_cron(app)
        if apply_armed_switches(app, runs, jobs):
            jobs, away = _queue(app, alerts)
    return [_status(app, run, jobs, alerts, away, is_named=bool(train)) for run in runs]


def _status(
    app: App, run: RunDir, jobs: list[Job] | None, alerts: Sequence[OpenAlert], away: str, *, is_named: bool
) -> TrainStatus:
    """Return the status of one train; of a train that cannot be read, the reason, unless the train was named."""
    try:
        return read_status(run, app.journal(run), jobs, app.clock.now(), alerts, away=away)
    except Exception as error:  # one train of another user must not hide all others
        if is_named:
            raise
        why = error.message if isinstance(error, OpsctlError) else f"{type(error).__name__}: {error}"
        return unreadable(run, why, away=away)


def _queue(app: App, alerts: Sequence[OpenAlert]) -> tuple[list[Job] | None, str]:
    """Return the queue, or the reason why Slurm does not answer, with the start of the outage if an alert has it."""
    try:
        return app.scheduler.jobs(), ""
    except Unreachable as error:
        since = next(
            (f", since {alert.since[:16].replace('T', ' ')} UTC" for alert in alerts if alert.key == SLURM), ""
        )
        return None, f"Slurm does not answer{since}: {error.message}"


def _page(statuses: list[TrainStatus], app: App, terminal: Console) -> RenderableType:
    if not statuses:
        return Text(f"no trains below {app.root}; opsctl launch TRAIN.toml starts one")
    now, ramp = app.clock.now(), ASCII if terminal.options.ascii_only else BLOCKS
    away = [
        Text(f"{text}; showing what the run directories record", "yellow")
        for text in {status.slurm for status in statuses}
        if text
    ]
    return Group(*away, *[status_block(status, now, ramp=ramp) for status in statuses])


def status_block(status: TrainStatus, now: datetime, *, ramp: str = BLOCKS) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(Text(status.train, style="bold"), Text(status.state, style=STYLES.get(status.state, "")))
    for label, text in _lines(status, now, ramp):
        table.add_row(f"  {label}", cell(text))
    return table


def _lines(status: TrainStatus, now: datetime, ramp: str) -> list[tuple[str, str]]:
    lines = [
        ("runs", f"{job.job} on {job.nodes or '?'}, {_for(job.since, now)}{_until(job.ends, now)}")
        for job in status.running or ()
    ]
    lines += [
        ("waits", f"{job.tasks} task{'s' * (job.tasks != 1)} of array {job.array}: {job.why}{_from(job.start)}")
        for job in status.waiting or ()
    ]
    may_run = bool(status.running or (status.running is None and status.begun))
    if status.running is None and status.begun:
        lines.append(
            ("began", f"{status.begun.attempt} on {status.begun.nodes or '?'}, {_for(status.begun.at, now)} ago")
        )
    if status.progress:
        lines += progress_lines(status.progress, now, is_running=may_run, ramp=ramp)
    elif status.running:
        lines.append(("progress", "none yet: neither a heartbeat nor an iteration in its log"))
    if status.last_attempt:
        last = status.last_attempt
        lines.append(("last attempt", f"{last.attempt} {last.outcome} {_for(last.at, now)} ago: {last.why}"))
        lines += [("advice", last.advice)] if last.advice and not status.running else []
    lines += [("stop", status.stop)] if status.stop else []
    lines += [
        (f"{armed.switch} switch", f"armed by {armed.by} {_for(armed.since, now)} ago{_because(armed.why)}")
        for armed in status.switches
    ]
    lines += [
        ("request", f"{request.verb} by {request.by}: `opsctl watch` carries it out") for request in status.requests
    ]
    lines += [(alert.level, f"{alert.summary}{' (acknowledged)' * alert.acknowledged}") for alert in status.alerts]
    return lines + [("note", note) for note in status.notes]


def _for(since: datetime | None, now: datetime) -> str:
    return format_duration((now - since).total_seconds()) if since else "?"


def _until(end: datetime | None, now: datetime) -> str:
    return f", {format_duration((end - now).total_seconds())} until its limit" if end and end > now else ""


def _from(start: datetime | None) -> str:
    return f", expected to start {start.astimezone():%Y-%m-%d %H:%M}" if start else ""


def _because(why: str) -> str:
    return f": {why}" if why else ""
