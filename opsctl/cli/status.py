"""`opsctl status`: one question to Slurm for all trains together."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.cli.output import console, json_option, print_json
from opsctl.errors import Unreachable
from opsctl.rundir import all_trains
from opsctl.status import Progress, Status
from opsctl.status import status as look

STYLES = {
    "running": "green",
    "finished": "green",
    "held": "yellow",
    "queued": "cyan",
    "ended": "red",
    "unknown": "magenta",
}


@click.command()
@click.argument("train", required=False)
@click.option("--watch", is_flag=True, help="Look again every --every seconds until Ctrl-C.")
@click.option("--every", type=click.FloatRange(min=1), default=10, show_default=True, help="Seconds between two looks.")
@json_option
@click.pass_obj
def status(app: App, train: str | None, *, watch: bool, every: float, as_json: bool) -> None:
    """What runs, what waits and why, step, loss and time left; of TRAIN, or of every train.

    \b
    opsctl status
    opsctl status tiny-gpt --watch
    opsctl status --json | jq '.[].progress.step'
    """
    if as_json:
        print_json([asdict(each) for each in _statuses(app, train)])
        return
    terminal = console()
    if not watch:
        terminal.print(_page(_statuses(app, train), app.clock.now(), str(app.root)))
        return
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            live.update(_watched(app, train), refresh=True)
            app.clock.sleep(every)


def _statuses(app: App, train: str | None) -> list[Status]:
    runs = [app.find(train)] if train else all_trains(app.root)
    jobs = app.scheduler.jobs() if runs else []
    return [look(run, app.journal(run), jobs, app.clock.now()) for run in runs]


def _watched(app: App, train: str | None) -> RenderableType:
    try:
        return _page(_statuses(app, train), app.clock.now(), str(app.root))
    except Unreachable as error:
        return Text(f"{error.message}; looking again", style="yellow")


def _page(statuses: list[Status], now: datetime, root: str) -> RenderableType:
    if not statuses:
        return Text(f"no trains below {root}; opsctl launch TRAIN.toml starts one")
    return Group(*[status_block(each, now) for each in statuses])


def status_block(each: Status, now: datetime) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(Text(each.train, style="bold"), Text(each.state, style=STYLES.get(each.state, "")))
    for label, text in _lines(each, now):
        table.add_row(f"  {label}", Text(text))
    return table


def _lines(each: Status, now: datetime) -> list[tuple[str, str]]:
    lines = [
        ("runs", f"{job.job} on {job.nodes or '?'}, {_for(job.since, now)}{_until(job.ends, now)}")
        for job in each.running
    ]
    lines += [
        ("waits", f"{job.tasks} task{'s' * (job.tasks != 1)} of {job.array}: {job.why}{_from(job.start)}")
        for job in each.waiting
    ]
    if each.progress:
        lines.append(("progress", progress_line(each.progress, is_running=bool(each.running))))
    if each.last_life:
        last = each.last_life
        lines.append(("last life", f"{last.life} {last.outcome}: {last.why}"))
    lines += [
        (f"{armed.switch} switch", f"armed by {armed.by} {_for(armed.since, now)} ago{_because(armed.why)}")
        for armed in each.switches
    ]
    lines += [("request", f"{ask.verb} by {ask.by}: `opsctl watch` carries it out") for ask in each.requests]
    return lines + [("note", note) for note in each.notes]


def progress_line(seen: Progress, *, is_running: bool) -> str:
    """`step 120 of 400 · loss 3.21 · 0.41 s a step · 1m 55s left`; what only a running trainer does, only of such."""
    parts = [f"step {seen.step}" + (f" of {seen.last_step}" if seen.last_step else "")]
    if seen.loss is not None:
        parts.append(f"loss {seen.loss:.4g}")
    if seen.step_s:
        parts.append(f"{seen.step_s:.3g} s a step")
    if seen.tflops:
        parts.append(f"{seen.tflops:.3g} TFLOPs")
    if is_running and seen.phase not in ("", "train"):
        parts.append(f"in {seen.phase}")
    if seen.checkpoint_step is not None:
        parts.append(f"checkpoint at {seen.checkpoint_step}")
    if is_running and seen.eta_s:
        parts.append(f"{duration(seen.eta_s)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """The two largest units: `2d 3h`, `4m 10s`."""
    left = timedelta(seconds=round(abs(seconds)))
    hours, rest = divmod(left.seconds, 3600)
    units = [(left.days, "d"), (hours, "h"), (rest // 60, "m"), (rest % 60, "s")]
    shown = [f"{n}{unit}" for n, unit in units if n][:2]
    return " ".join(shown) or "0s"


def _for(since: datetime | None, now: datetime) -> str:
    return duration((now - since).total_seconds()) if since else "?"


def _until(end: datetime | None, now: datetime) -> str:
    return f", {duration((end - now).total_seconds())} until its limit" if end and end > now else ""


def _from(start: datetime | None) -> str:
    return f", expected to start {start.astimezone():%Y-%m-%d %H:%M}" if start else ""


def _because(why: str) -> str:
    return f": {why}" if why else ""
