"""The daemon driver: APScheduler in the foreground, for tmux or systemd. Every tick is a separate process."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.interval import IntervalTrigger

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Runner, TimedOut
from opsctl.cron.cron_context import CronContext
from opsctl.cron.cron_dir import SelectedDriver, read_selected, write_selected
from opsctl.cron.drivers.export import NAME as EXPORT
from opsctl.host.processes import ProcessId, own_process
from opsctl.state.journal import actor
from opsctl.state.lease import lease

log = logging.getLogger(__name__)
NAME = "daemon"
GRID = datetime(2000, 1, 1, tzinfo=UTC)
"""Ticks come at whole multiples of the interval after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronDaemon:
    cron: CronContext
    runner: Runner
    tick: Sequence[str]
    """The command of one tick."""

    def run(self, begun: Callable[[], None] = lambda: None) -> None:
        """Tick until Ctrl-C, SIGTERM or the start of another driver. Calls `begun` first.

        Raises InputError if a driver runs already.
        """
        self._claim()
        begun()
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # hides warnings about late ticks
        scheduler = BlockingScheduler(timezone=UTC)
        every = self.cron.settings.every
        scheduler.add_job(
            lambda: self._tick(scheduler),
            IntervalTrigger(seconds=every, start_date=GRID, timezone=UTC),
            coalesce=True,
            max_instances=1,
            misfire_grace_time=None,
            next_run_time=self.cron.clock.now(),
        )
        log.info("ticking every %d s until Ctrl-C", every)
        try:
            scheduler.start()
        except (KeyboardInterrupt, SystemExit):
            log.info("leaving after the current tick")
            scheduler.shutdown(wait=True)
        finally:
            if self._is_ours():
                self.cron.place.selected.unlink(missing_ok=True)

    def _tick(self, scheduler: BlockingScheduler) -> None:
        if not self._is_ours():
            log.info("another driver was started: stopping")
            scheduler.shutdown(wait=False)
            return
        try:
            done = self.runner.run(self.tick, timeout=self.cron.settings.limit_seconds)
        except (TimedOut, OpsctlError) as error:
            log.warning("tick: %s", error)
        else:
            sys.stderr.write(done.err)  # the log of the tick, and the error of a tick that did not start

    def _claim(self) -> None:
        place, me = self.cron.place, own_process()
        with lease(place.driver, self.cron.clock):
            if (other := alive(self.cron)) and other.driver != EXPORT:
                raise InputError(
                    f"cron is driven already, by {describe(other)}", hint="opsctl cron status; opsctl cron stop"
                )
            write_selected(
                place,
                SelectedDriver(
                    driver=NAME,
                    since=self.cron.clock.now(),
                    by=actor(),
                    host=hostname(),
                    pid=me.pid,
                    started=me.started,
                ),
            )

    def _is_ours(self) -> bool:
        wanted = read_selected(self.cron.place)
        return wanted is not None and (not wanted.driver or wanted.process == own_process())


def alive(cron: CronContext) -> SelectedDriver | None:
    """Return the selected driver; None if there is none or the driver is a dead daemon."""
    wanted = read_selected(cron.place)
    if wanted is None or not wanted.driver:
        return None
    if wanted.driver != NAME:
        return wanted
    if wanted.process:
        return wanted if wanted.process.is_alive else None
    # A daemon on another machine shows only by its ticks.
    return None if cron.place.is_overdue(cron.settings.every, cron.clock.now()) else wanted


def describe(wanted: SelectedDriver) -> str:
    """`the daemon with pid 12 on login1, since 2026-01-02 03:04 UTC, of anna`."""
    where = f" with pid {wanted.pid} on {wanted.host}" if wanted.driver == NAME else ""
    if wanted.driver == EXPORT:
        return f"an exported line on {wanted.host}, since {wanted.since:%Y-%m-%d %H:%M} UTC, of {wanted.by}"
    return f"the {wanted.driver} driver{where}, since {wanted.since:%Y-%m-%d %H:%M} UTC, of {wanted.by}"


def stop(cron: CronContext, wanted: SelectedDriver) -> str:
    """Ask a daemon to leave; return a sentence about the action."""
    cron.place.selected.unlink(missing_ok=True)
    process: ProcessId | None = wanted.process
    if process is None:
        return f"the daemon on {wanted.host} leaves at its next tick"
    if not process.is_alive:
        return "the daemon was gone already"
    process.send(15)
    return f"asked the daemon with pid {wanted.pid} to leave"
