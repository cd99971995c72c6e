"""Drivers of ticks: a job that resubmits itself, a daemon in the foreground, or the site's own scheduler."""

from __future__ import annotations

from opsctl.cron.drivers.export import NAME as EXPORT
from opsctl.cron.drivers.selected_driver import read_selected
from opsctl.cron.drivers.slurm_job import NAME as SLURM
from opsctl.cron.drivers.slurm_job import SlurmDriver


def revive(driver: SlurmDriver) -> str:
    """Submit the next tick if ticks are overdue and none is queued; return a sentence about the action.

    Reads two files and does not call Slurm while ticks are on time. Raises OpsctlError.
    """
    cron = driver.cron
    now = cron.clock.now()
    if not cron.place.is_overdue(cron.settings.every, now):
        return ""
    last = cron.place.last_tick()
    since = f"no tick since {last:%Y-%m-%d %H:%M} UTC" if last else "no tick ever came"
    try:
        wanted = read_selected(cron.place)
    except (OSError, ValueError):
        wanted = None
    if wanted and wanted.driver == EXPORT:
        return f"cron: {since}: does the scheduler of {wanted.host} still have the line of `opsctl cron export`?"
    if wanted and wanted.driver != SLURM:
        return f"cron: {since}: opsctl cron start {wanted.driver} brings it back"
    before = {job.id for job in driver.jobs()}
    job = driver.ensure(after=now)
    # A job that already existed waits for a node or runs for long.
    return "" if job is None or job in before else f"cron: {since}: submitted the next one as job {job}"
