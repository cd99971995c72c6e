"""Tasks that every command of the owner of a train does first: finalize attempts, carry out requests, keep cron."""

from __future__ import annotations

from collections.abc import Sequence

import click

from opsctl.app import App
from opsctl.cron.cron_dir import CronDir
from opsctl.errors import OpsctlError, Unreachable
from opsctl.model import Job
from opsctl.state.run_dir import RunDir, may_act
from opsctl.state.switches import Switch, read


def reconcile_as_owner(app: App, run: RunDir, *, dry_run: bool = False) -> None:
    """Reconcile `run` if it is ours. Raises Unreachable; prints other problems, so that the command goes on."""
    if dry_run or not run.exists or not run.is_ours:
        return
    keep_cron(app)
    from opsctl.monitor import reconcile  # noqa: PLC0415 (a dry run starts without the guard)

    try:
        for line in reconcile.reconcile(app.chain(run), care=app.node_care, runner=app.engine_runner):
            click.echo(f"{run.name}: {line}", err=True)
    except Unreachable:
        raise
    except (OpsctlError, OSError) as error:
        click.echo(f"{run.name}: reconcile failed: {error}", err=True)


def apply_armed_switches(app: App, runs: Sequence[RunDir], jobs: Sequence[Job]) -> bool:
    """Apply the kill and pause switches of our trains to the queue; return whether something was done.

    Reads one directory of each train without an armed switch. Problems are printed only.
    """
    has_acted = False
    for run in runs:
        try:
            if not may_act(run) or not (read(run, Switch.KILL) or read(run, Switch.PAUSE)):
                continue
            from opsctl.guard.apply_switches import apply_switches  # noqa: PLC0415 (imports the guard)
            from opsctl.monitor.reconcile import read_rules  # noqa: PLC0415 (as above)

            for line in apply_switches(app.chain(run), read_rules(run), jobs):
                has_acted = True
                click.echo(f"{run.name}: {line}", err=True)
        except (OpsctlError, OSError) as error:
            click.echo(f"{run.name}: applying the switches failed: {error}", err=True)
    return has_acted


def keep_cron(app: App) -> None:
    """Submit the next tick if ticks of cron are overdue. Problems are printed only.

    Reads two files if cron is not overdue.
    """
    try:
        if not CronDir(app.site_dir).is_overdue(app.site.cron.every, app.clock.now()):
            return
        from opsctl.cron.drivers import revive  # noqa: PLC0415 (imports APScheduler)

        if text := revive(app.slurm_cron):
            click.echo(text, err=True)
    except (OpsctlError, OSError) as error:
        click.echo(f"cron: {error}", err=True)
