"""`opsctl cron`: run periodic jobs, with or without system cron."""

import logging
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo

import click
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.base.errors import ConfigError, InputError, MissingProgram, OpsctlError, SlurmError, Unreachable
from opsctl.base.units import format_duration, format_size
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.output import (
    app_and_json,
    app_json_and_dry_run,
    cell,
    make_table,
    print_json,
    print_result,
    print_unless_json,
    wants_json,
)
from opsctl.cron.cron_status import CronStatus, read_cron_status
from opsctl.cron.drivers import daemon as daemons
from opsctl.cron.drivers import export as exported_lines
from opsctl.cron.drivers.daemon import CronDaemon
from opsctl.cron.drivers.export import FORMATS
from opsctl.cron.entry_output import sweep
from opsctl.cron.tick import TickRunner
from opsctl.host import log_config
from opsctl.slurm.job_environment import own_job
from opsctl.state.lease import LeaseBusy
from opsctl.state.run_dir import all_trains, may_act

log = logging.getLogger("opsctl.cron")
DRIVERS = ("slurm", "daemon")
STYLES = {"ok": "green", "running": "cyan", "": "dim"}


@click.command()
@app_and_json
def status(app: App) -> int:
    """Show the driver and the schedule of cron.

    For each entry: last run, duration, result and next run. Exit 1 if ticks are overdue.

    \b
    opsctl cron status
    """
    cron_status = read_cron_status(app.cron)
    head, table = _head(cron_status, app.clock.now()), _table(cron_status, app.cron.zone)
    outputs = Text(f"output of entries: {app.cron.place.output}", "dim")
    print_result(cron_status, *head, table, *([outputs] * any(entry.output for entry in cron_status.entries)))
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
    rows = []
    for entry in status.entries:
        words = " ".join(filter(None, (entry.result, entry.detail, entry.output))) or "not yet"
        took = format_duration(entry.seconds) if entry.started else ""
        result = cell(words, STYLES.get(entry.result, "red"))
        began, due = _time(entry.started, zone), _time(entry.next, zone) or "never"
        rows.append((entry.id, entry.when, began, took, result, due))
    return make_table(rows, ("entry", "when", "ran", "took", "result", "next"))


def _time(at: datetime | None, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}" if at else ""


@click.group(cls=SuggestingGroup)
def cron() -> None:
    """Run periodic jobs, with or without system cron.

    \b
    opsctl cron start                tick every 10 minutes, by the first allowed driver
    opsctl cron status               show last runs, results and next runs
    opsctl cron tick                 run the due entries once
    opsctl cron export crontab       print a line for an existing crontab
    """


@cron.command()
@click.argument("driver", required=False, type=click.Choice(DRIVERS))
@app_and_json
def start(app: App, driver: str | None) -> None:
    """Start the cron of opsctl.

    Without DRIVER: the first entry of `drivers` in site.toml that works. Starting twice is safe.

    \b
    slurm      a small Slurm job that resubmits itself
    daemon     a process in the foreground, for tmux or systemd

    \b
    opsctl cron start
    opsctl cron start daemon
    """
    _check_schedule(app)
    app.cron.place.create()
    named = [driver] if driver else [driver_name for driver_name in app.site.cron.drivers if driver_name in DRIVERS]
    refused: dict[str, str] = {}
    for name in named[:-1]:
        try:
            _start(app, name, refused)
        except Unreachable:
            raise
        except (SlurmError, MissingProgram) as error:
            refused[name] = error.message
            print_unless_json(f"skipped the {name} driver: {error.message}")
        else:
            return
    if not named:
        raise InputError("`drivers` in site.toml allows only export", hint="opsctl cron export crontab")
    _start(app, named[-1], refused)


def _check_schedule(app: App) -> None:
    """Raise ConfigError for problems that otherwise only a tick would report, unattended."""
    schedule = app.cron.schedule()
    if schedule.problems:
        raise ConfigError(str(app.cron.directory), list(schedule.problems))
    for entry in schedule.entries:
        app.cron.check_trusted(entry)


def _start(app: App, driver: str, refused: Mapping[str, str]) -> None:
    begun = {"driver": driver, "every": app.site.cron.every, "refused": refused}
    if driver == "daemon":
        log_config.show_progress()
        signal.signal(signal.SIGTERM, _leave)
        CronDaemon(cron=app.cron, runner=app.runner, tick=tick_argv(app)).run(
            lambda: print_json({**begun, "pid": os.getpid()}) if wants_json() else None
        )
        return
    other = daemons.alive(app.cron)
    if other and other.driver not in {driver, exported_lines.NAME}:
        raise InputError(f"cron is driven already, by {daemons.describe(other)}", hint="opsctl cron stop")
    job, already = app.slurm_cron.start()
    text = f"{'already ticks' if already else 'ticks'} every {app.site.cron.every} s, next as job {job}"
    print_result({**begun, "job": job, "was_started": already}, f"{text}\n  opsctl cron status")


def tick_argv(app: App) -> list[str]:
    return [*app.program, "cron", "tick"]


@cron.command()
@app_and_json
def stop(app: App) -> None:
    """Stop the cron of opsctl.

    A running tick finishes first.

    \b
    opsctl cron stop
    """
    running = daemons.alive(app.cron)
    cancelled: list[str] = []
    if running and running.driver == daemons.NAME:
        done = daemons.stop(app.cron, running)
    elif running and running.driver == exported_lines.NAME:
        app.cron.place.selected.unlink(missing_ok=True)
        done = f"stopped expecting ticks; the line on {running.host} still ticks until it is removed"
    else:
        if app.cron.place.exists:
            app.cron.place.create()  # another command may have made the directory alone
            cancelled = app.slurm_cron.stop()
        done = f"stopped; cancelled job {', '.join(cancelled)}" if cancelled else "stopped; nothing was waiting"
    print_result({"driver": running.driver if running else None, "done": done, "cancelled": cancelled}, done)


@cron.command()
@click.option("--slot", type=int, default=0, hidden=True, help="Due time of this tick, set by the slurm driver.")
@click.option(exported_lines.FLAG, "is_exported", is_flag=True, hidden=True, help="Set by the lines of cron export.")
@app_and_json
def tick(app: App, *, slot: int, is_exported: bool) -> int:
    """Run the cron entries that are due.

    Each entry runs at most once, however long ago the last tick was. Exit 1 if an entry failed.

    \b
    opsctl cron tick
    """
    signal.signal(signal.SIGTERM, _leave)
    app.cron.place.create()
    if is_exported:  # cron mails whatever a line prints
        _expect(app)
    else:
        log_config.show_progress()
    if not slot:
        return _tick(app, None)
    due, began = datetime.fromtimestamp(slot, UTC), app.clock.monotonic()
    driver, own = app.slurm_cron, own_job(os.environ)
    try:
        driver.ensure(after=due, own=own)
    except OpsctlError as error:
        log.warning("the next tick: %s", error.message)
    try:
        return _tick(app, due)
    finally:
        left = app.site.cron.limit_seconds - 60 - (app.clock.monotonic() - began)
        if not driver.follow(due, own, seconds=left):
            log.warning("the next tick could not be submitted; the next command or guard tries again")


def _expect(app: App) -> None:
    try:
        exported_lines.expect(app.cron)
    except OpsctlError as error:
        log.warning(error.message)  # a full disk is no reason not to tick


def _tick(app: App, slot: datetime | None) -> int:
    work = TickRunner(cron=app.cron, slot=slot)
    try:
        ran = work.run()
    except LeaseBusy as error:
        log.warning(error.message)
        return 0
    lines = []
    for id, entry_run in ran.items() if slot is None else ():
        result = " ".join(filter(None, (entry_run.result, entry_run.detail)))
        lines.append(f"{id}: {result}, {format_duration(entry_run.seconds)}")
    print_result(ran, *lines)
    return 1 if work.problems else 0


@cron.command()
@app_json_and_dry_run
def prune(app: App, *, dry_run: bool) -> int:
    """Remove old output of cron entries, and pack old logs.

    Removes output older than `keep_days`, and the leftovers of killed writers. Packs the logs and the evidence of old
    attempts as [keep] says; `opsctl logs`, `why` and `report` read packed files. A later run removes the originals,
    after an hour or more. `opsctl doctor --keep` shows the sizes.

    \b
    opsctl cron prune --dry-run
    opsctl cron prune
    """
    from opsctl.monitor.keep_files import carry_out, plan, read_keep_table  # noqa: PLC0415 (slow import)

    steps, problems = [], []
    removed = 0 if dry_run else sweep(app.cron.place, app.clock.now(), app.site.cron)
    for run in filter(may_act, all_trains(app.root)):
        try:
            planned = plan(run, read_keep_table(run, app.site), app.clock.now())
            if not dry_run:
                carry_out(planned, run, app.clock)
            steps += planned
        except (OpsctlError, OSError) as error:
            problems.append(f"{run.name}: {error}")
    lines = [f"{step.verb:<6}  {format_size(step.size):>8}  {step.path}" for step in steps]
    lines += problems if dry_run else [*problems, f"removed {removed} file{'s' * (removed != 1)}"]
    print_result({"removed": removed, "steps": steps, "problems": problems}, "\n".join(lines) or "nothing is due")
    return int(bool(problems))


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@cron.command()
@click.argument("form", type=click.Choice(list(FORMATS)), default="crontab")
@click.pass_obj
def export(app: App, form: str) -> None:
    """Print lines for an existing scheduler to run ticks.

    For sites that already run crontab, systemd or another scheduler.

    \b
    opsctl cron export crontab
    opsctl cron export systemd-service > ~/.config/systemd/user/opsctl-cron.service
    """
    click.echo(FORMATS[form](tick_argv(app), app.site.cron), nl=False)


cron.add_command(status)
