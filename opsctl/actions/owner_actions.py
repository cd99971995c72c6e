"""Actions that every call of the owner of a train does first: finalize attempts, carry out requests, keep cron."""

import logging
from collections.abc import Callable, Sequence

from opsctl.app import App
from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job
from opsctl.cron.cron_dir import CronDir
from opsctl.state.run_dir import RunDir, may_act
from opsctl.state.switches import Switch, read

log = logging.getLogger(__name__)


def reconcile_own_train(app: App, run: RunDir, *, show: Callable[[str], None] = log.info) -> None:
    """Reconcile `run` if it is ours. Raises Unreachable; shows other problems and every action, and goes on."""
    if not run.exists or not run.is_ours:
        return
    keep_cron_alive(app, show=show)
    from opsctl.guard.node_care import NodeCare  # noqa: PLC0415 (as below)
    from opsctl.monitor import reconcile  # noqa: PLC0415 (a dry run starts without the guard)

    try:
        for line in reconcile.reconcile(app.arrays(run), care=NodeCare.of(app), runner=app.engine_runner):
            show(f"{run.name}: {line}")
    except Unreachable:
        raise
    except (OpsctlError, OSError) as error:
        show(f"{run.name}: reconcile failed: {error}")


def apply_armed_switches(
    app: App, runs: Sequence[RunDir], jobs: Sequence[Job], *, show: Callable[[str], None] = log.info
) -> bool:
    """Apply the kill and pause switches of our trains to the queue; return whether something was done.

    Reads one directory of each train without an armed switch. Problems are shown only.
    """
    has_acted = False
    for run in runs:
        try:
            if not may_act(run) or not (read(run, Switch.KILL) or read(run, Switch.PAUSE)):
                continue
            from opsctl.guard.apply_switches import apply_switches  # noqa: PLC0415 (imports the guard)
            from opsctl.monitor.reconcile import read_rules  # noqa: PLC0415 (as above)

            for line in apply_switches(app.arrays(run), read_rules(run), jobs):
                has_acted = True
                show(f"{run.name}: {line}")
        except (OpsctlError, OSError) as error:
            show(f"{run.name}: applying the switches failed: {error}")
    return has_acted


def keep_cron_alive(app: App, *, show: Callable[[str], None] = log.info) -> None:
    """Submit the next tick if ticks of cron are overdue. Problems are shown only.

    Reads two files if cron is not overdue.
    """
    try:
        if not CronDir(app.site_dir).is_overdue(app.site.cron.every, app.clock.now()):
            return
        if text := app.slurm_cron.revive():
            show(text)
    except (OpsctlError, OSError) as error:
        show(f"cron: {error}")
