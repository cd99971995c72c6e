"""What the owner of a train does first with any verb: finalize what has ended, carry out what team-mates asked for."""

from __future__ import annotations

import click

from opsctl.app import App
from opsctl.cron.cron_dir import CronDir
from opsctl.errors import OpsctlError, Unreachable
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir


def reconcile_as_owner(app: App, run: RunDir, *, dry_run: bool = False) -> None:
    """Catch up with `run`, where it is ours. Raises Unreachable; whatever else stands in the way is only said, for the
    verb that was typed comes first."""
    if dry_run or not run.exists or not run.is_ours:
        return
    keep_cron(app)
    from opsctl.monitor import reconcile  # noqa: PLC0415 (the guard and all, which a dry run can do without)

    try:
        for line in reconcile.reconcile(app.chain(run), care=app.node_care):
            click.echo(f"{run.name}: {line}", err=True)
    except Unreachable:
        raise
    except (OpsctlError, OSError) as error:
        click.echo(f"{run.name}: catching up failed: {error}", err=True)


def keep_cron(app: App) -> None:
    """Where ticks of cron should come and stay away, have the next one submitted. Costs two looks at files where they
    come. Whatever stands in the way is only said."""
    try:
        if not CronDir(SiteDir.of(app.root)).is_overdue(app.site.cron.every, app.clock.now()):
            return
        from opsctl.cron.drivers import revive  # noqa: PLC0415 (APScheduler and all, when it is needed)

        if text := revive(app.slurm_cron):
            click.echo(text, err=True)
    except (OpsctlError, OSError) as error:
        click.echo(f"cron: {error}", err=True)
