"""`opsctl watch`: run watch cycles, once or until Ctrl-C."""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter

import click

from opsctl.actions.owner_actions import keep_cron_alive
from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Finding, Severity
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import (
    SEVERITY_STYLES,
    app_and_json,
    complete_trains,
    print_json,
    print_on_stderr,
    print_text,
    wants_json,
)
from opsctl.host import log_config
from opsctl.monitor.cycle_report import CycleReport
from opsctl.monitor.steady_clock import SteadyClock
from opsctl.monitor.watch_cycle import Watch

NAGIOS = {Severity.OK: 0, Severity.WARNING: 1, Severity.CRITICAL: 2, Severity.UNKNOWN: 3}
CRON_CHECK_INTERVAL_S = 60.0
"""Time between two checks of a resident watch that cron still ticks."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--train",
    "trains",
    multiple=True,
    metavar="TRAIN",
    shell_complete=complete_trains,
    help="Watch only this train; repeatable.",
)
@click.option("--once", is_flag=True, help="Run one watch cycle (the default without --every).")
@click.option("--every", type=INTERVAL, help="Repeat until Ctrl-C, at this interval, such as 10s or 5m.")
@click.option("--dry-run", is_flag=True, help="Only watch: finalize, cancel and send nothing.")
@click.option("--nagios", is_flag=True, help="Only watch, and report as a Nagios plugin: exit 0 to 3.")
@app_and_json
def watch(
    app: App,
    names: Sequence[str],
    trains: Sequence[str],
    *,
    once: bool,
    every: timedelta | None,
    dry_run: bool,
    nagios: bool,
) -> int:
    """Run all watchdogs, finalize attempts, send alerts.

    Watches trains, nodes, file systems and cron; alerts are sent for changes only. NAMEs select watchdogs:
    slurm_status hang failures node_health held loss throughput checkpoint fs_quota cron_alive
    train_checks site_checks.

    \b
    opsctl watch                               run one watch cycle
    opsctl watch slurm_status --train my-run --once
    opsctl watch hang --every 10s              run until Ctrl-C, in tmux or a job
    opsctl watch fs_quota --nagios
    """
    if once and every:
        raise click.UsageError("--once or --every, not both")
    if nagios and (every or wants_json()):
        raise click.UsageError("--nagios excludes --every and --json")
    app = app.with_clock(SteadyClock(app.clock))
    if nagios:
        return _nagios(app, names, trains)
    log_config.show_progress()
    train_names = [app.find(train).name for train in trains]
    watching = Watch(app=app, names=names, trains=train_names, acts=not dry_run)
    checked_at = float("-inf")
    while True:
        if not dry_run and app.clock.monotonic() - checked_at >= CRON_CHECK_INTERVAL_S:
            keep_cron_alive(app, show=print_on_stderr)
            checked_at = app.clock.monotonic()
        report = watching.cycle()
        print_json(report) if wants_json() else _show(report, is_short=every is not None)
        if every is None:
            for channel in watching.people.finish_sending():
                print_on_stderr(f"opsctl: {channel} does not answer; the next watch cycle sends its messages")
            return 1 if report.problems else 0
        app.clock.sleep(max(0.0, every.total_seconds() - report.seconds))


def _show(report: CycleReport, *, is_short: bool) -> None:
    """Print the findings of a cycle; if short, only changes and findings that are not ok."""
    for reconciled in report.reconciled:
        for line in (*reconciled.done, *([f"failed: {reconciled.error}"] if reconciled.error else [])):
            print_text(f"{reconciled.train}: {line}")
    for finding in report.findings:
        if not is_short or not finding.is_ok:
            _line(finding)
    for transition in report.transitions:
        finding = transition.finding
        print_text(f"changed: {finding.key}: {transition.before.value} -> {finding.severity.value}")
    if not report.findings:
        print_text("nothing to watch: there are no trains; opsctl launch TRAIN.toml starts one")


def _line(finding: Finding) -> None:
    severity = click.style(f"{finding.severity.value:9}", fg=SEVERITY_STYLES[finding.severity])
    print_text(f"{severity} {finding.key:28} {finding.summary}")
    if finding.is_ok:
        return
    for line in (*finding.lines, *finding.done, *([f"-> {finding.remedy}"] if finding.remedy else [])):
        print_text(f"{'':38} {line}")


def _nagios(app: App, names: Sequence[str], trains: Sequence[str]) -> int:
    """Print a Nagios status line, then the findings; return the exit code. An error is UNKNOWN."""
    try:
        known = [app.find(train).name for train in trains]
        findings = Watch(app=app, names=names, trains=known, acts=False).cycle().findings
    except OpsctlError as error:
        print_text(f"UNKNOWN - {error.message}")
        return NAGIOS[Severity.UNKNOWN]
    worst = max((finding.severity for finding in findings), key=attrgetter("rank"), default=Severity.OK)
    lines = [finding.summary for finding in findings if finding.severity is worst]
    bar = str.maketrans("|\n", "/ ")  # a bar starts performance data
    head = "; ".join(lines) if worst is not Severity.OK else f"{len(findings)} findings"
    print_text(f"{worst.value.upper()} - {head}".translate(bar))
    for finding in findings:
        print_text(f"{finding.severity.value.upper()} {finding.key}: {finding.summary}".translate(bar))
    return NAGIOS[worst]
