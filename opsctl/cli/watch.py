"""`opsctl watch`: look at everything once, or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

import click

from opsctl.app import App
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import complete_trains, json_option, print_json, say
from opsctl.cli.owner_tasks import keep_cron
from opsctl.errors import OpsctlError
from opsctl.model import Finding, Level
from opsctl.monitor.watch_cycle import CycleReport, Watch

NAGIOS = {Level.OK: 0, Level.WARNING: 1, Level.CRITICAL: 2, Level.UNKNOWN: 3}
WORST = (Level.CRITICAL, Level.WARNING, Level.UNKNOWN, Level.OK)
STYLES = {Level.OK: "green", Level.UNKNOWN: "magenta", Level.WARNING: "yellow", Level.CRITICAL: "red"}
NOTICE = 60.0
"""Seconds between two looks of a resident watch at whether cron still ticks: where it does not, Slurm is asked."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--train",
    "trains",
    multiple=True,
    metavar="TRAIN",
    shell_complete=complete_trains,
    help="Only this train; may be said several times.",
)
@click.option("--once", is_flag=True, help="Look once, which is what it does without --every.")
@click.option("--every", type=INTERVAL, help="Repeat until Ctrl-C, such as every 10s or 5m.")
@click.option("--dry-run", is_flag=True, help="Only look: finalize, cancel and send nothing.")
@click.option("--nagios", is_flag=True, help="Only look, and say it as a Nagios plugin does: exit 0, 1, 2 or 3.")
@json_option
@click.pass_obj
def watch(
    app: App, names: Sequence[str], trains: Sequence[str], *, once: bool, every: timedelta | None, dry_run: bool,
    nagios: bool, as_json: bool,
) -> int:  # fmt: skip
    """Look at every train, the file systems and cron, finalize what ended, and tell people what has changed.

    NAMEs are watchdogs: slurm_status hang failures node_health held loss throughput checkpoint
    fs_quota cron_alive.

    \b
    opsctl watch                               everything, once
    opsctl watch slurm_status --train my-run --once
    opsctl watch hang --every 10s              for tmux, or a job of its own
    opsctl watch fs_quota --nagios
    """
    if once and every:
        raise click.UsageError("--once or --every, not both")
    if nagios and (every or as_json):
        raise click.UsageError("--nagios prints one look as Nagios reads it: neither --every nor --json go with it")
    if nagios:
        return _nagios(app, names, trains)
    known = [app.find(train).name for train in trains]
    watching = Watch(services=app, names=names, trains=known, acts=not dry_run)
    noticed = float("-inf")
    while True:
        if not dry_run and app.clock.monotonic() - noticed >= NOTICE:
            keep_cron(app)
            noticed = app.clock.monotonic()
        report = watching.cycle()
        print_json(asdict(report)) if as_json else _show(report, is_short=every is not None)
        if every is None:
            return 1 if report.problems else 0
        app.clock.sleep(max(0.0, every.total_seconds() - report.seconds))


def _show(report: CycleReport, *, is_short: bool) -> None:
    """All that was found; of a cycle among many, only what changed and what is not well."""
    for reconciled in report.reconciled:
        for line in (*reconciled.done, *([f"failed: {reconciled.error}"] if reconciled.error else [])):
            say(f"{reconciled.train}: {line}")
    for finding in report.findings:
        if not is_short or finding.level is not Level.OK:
            _line(finding)
    for transition in report.transitions:
        say(f"told: {transition.finding.key}: {transition.before.value} -> {transition.finding.level.value}")
    if not report.findings:
        say("nothing to look at: there is no train here; opsctl launch TRAIN.toml")
    _say_what_failed(report)


def _say_what_failed(report: CycleReport) -> None:
    for delivery in report.deliveries:
        if delivery.error:
            again = "it will not work by itself" if delivery.error.is_permanent else "tried again later"
            click.echo(f"opsctl: not delivered by {delivery.item.channel}, {again}: {delivery.error.message}", err=True)
    for problem in report.problems:
        click.echo(f"opsctl: {problem}", err=True)


def _line(finding: Finding) -> None:
    level = click.style(f"{finding.level.value:9}", fg=STYLES[finding.level])
    say(f"{level} {finding.key:28} {finding.summary}")
    if finding.level is Level.OK:
        return
    for line in (*finding.evidence, *finding.done, *([f"-> {finding.remedy}"] if finding.remedy else [])):
        say(f"{'':38} {line}")


def _nagios(app: App, names: Sequence[str], trains: Sequence[str]) -> int:
    """One line that says it all, then the rest. Whatever goes wrong is UNKNOWN."""
    try:
        known = [app.find(train).name for train in trains]
        findings = Watch(services=app, names=names, trains=known, acts=False).cycle().findings
    except OpsctlError as error:
        say(f"UNKNOWN - {error.message}")
        return NAGIOS[Level.UNKNOWN]
    worst = next((level for level in WORST if any(finding.level is level for finding in findings)), Level.OK)
    lines = [finding.summary for finding in findings if finding.level is worst]
    bar = str.maketrans("|\n", "/ ")  # a bar would begin performance data
    head = "; ".join(lines) if worst is not Level.OK else f"{len(findings)} looked at"
    say(f"{worst.value.upper()} - {head}".translate(bar))
    for finding in findings:
        say(f"{finding.level.value.upper()} {finding.key}: {finding.summary}".translate(bar))
    return NAGIOS[worst]
