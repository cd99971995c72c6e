"""Actions that every call of the owner of a train does first: finalize attempts, carry out requests, keep cron."""

from __future__ import annotations

import logging
from collections.abc import Callable

from opsctl.app import App
from opsctl.cron.cron_dir import CronDir
from opsctl.errors import OpsctlError, Unreachable
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir

log = logging.getLogger(__name__)


def reconcile_own_train(app: App, run: RunDir, *, show: Callable[[str], None] = log.info) -> None:
    """Reconcile `run` if it is ours. Raises Unreachable; shows other problems and every action, and goes on."""
    if not run.exists or not run.is_ours:
        return
    keep_cron_alive(app, show=show)
    from opsctl.monitor import reconcile  # noqa: PLC0415 (a dry run starts without the guard)

    try:
        for line in reconcile.reconcile(app.chain(run), care=app.node_care):
            show(f"{run.name}: {line}")
    except Unreachable:
        raise
    except (OpsctlError, OSError) as error:
        show(f"{run.name}: reconcile failed: {error}")


def keep_cron_alive(app: App, *, show: Callable[[str], None] = log.info) -> None:
    """Submit the next tick if ticks of cron are overdue. Problems are shown only.

    Reads two files if cron is not overdue.
    """
    try:
        if not CronDir(SiteDir.of(app.root)).is_overdue(app.site.cron.every, app.clock.now()):
            return
        from opsctl.cron.drivers import revive  # noqa: PLC0415 (imports APScheduler)

        if text := revive(app.slurm_cron):
            show(text)
    except (OpsctlError, OSError) as error:
        show(f"cron: {error}")
