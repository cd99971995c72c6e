"""One tick: run every due entry at most once and record the results."""

import logging
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.nodesets import hostname
from opsctl.cron.cron_context import CronContext, entry_env
from opsctl.cron.cron_dir import (
    FORGET,
    MAX_TICKS,
    EntryResult,
    EntryRun,
    RunHistory,
    TickRun,
    read_ledger,
    write_ledger,
)
from opsctl.cron.crontab import CronEntry, is_due
from opsctl.cron.entry_output import KEEP_BYTES, keep_output, prune
from opsctl.host.system import Bounded, run_bounded
from opsctl.slurm.job_environment import own_job
from opsctl.state.lease import HeldLease, lease_if_possible

log = logging.getLogger(__name__)
PULSE_S = 20.0
"""Interval at which a tick renews its lease; a lease that is two minutes old is stale."""
SUBMIT_TIMEOUT_S = 30.0
NOT_SUBMITTED = re.compile(rb"Unable to contact slurm controller")
JOB = re.compile(rb"(\d+)(;\S+)?\s*")


@dataclass(kw_only=True)
class TickRunner:
    cron: CronContext
    slot: datetime | None
    """Scheduled time of the tick. A node with a slow clock uses this time as its own."""
    ledger: RunHistory = field(default_factory=RunHistory)
    problems: list[str] = field(default_factory=list)
    lease: HeldLease | None = None
    _alive: float = float("-inf")
    _is_ledger_written: bool = True
    """Whether the last write of the ledger worked."""

    @property
    def now(self) -> datetime:
        now = self.cron.clock.now()
        return max(now, self.slot) if self.slot else now

    def run(self) -> dict[str, EntryRun]:
        """Run the due entries and return their results. Raises LeaseBusy while another tick runs."""
        began = self.cron.clock.monotonic()
        late = began + max(self.cron.settings.limit_seconds - 60, self.cron.settings.limit_seconds / 2)
        with lease_if_possible(self.cron.place.path, self.cron.clock, wait=2, warn=self._problem) as self.lease:
            self.cron.place.touch(self.cron.clock.now())
            self.ledger = read_ledger(self.cron.place)
            ran = {}
            for entry in self._due():
                left = late - self.cron.clock.monotonic()
                if left < 1:
                    self._problem("out of time; the rest is due at the next tick")
                    break
                ran[entry.id] = self._run(entry, left)
            self._end(tuple(ran), self.cron.clock.monotonic() - began)
        return ran

    def _due(self) -> list[CronEntry]:
        schedule = self.cron.schedule()
        for problem in schedule.problems:
            self._problem(problem)
        now, every = self.now, timedelta(seconds=self.cron.settings.every)
        fresh = EntryRun(since=now - every)
        known = {entry.id: self.ledger.entries.get(entry.id, fresh) for entry in schedule.entries}
        entries = {id: replace(ran, since=ran.due_since(now)) for id, ran in known.items()}
        remembered = {id: ran for id, ran in self.ledger.entries.items() if now - ran.since < FORGET}
        self.ledger = replace(self.ledger, entries={**remembered, **entries})
        self._write()
        # Without a writable ledger, every tick would make up the same missed times.
        floor = datetime.min.replace(tzinfo=UTC) if self._is_ledger_written else now - every
        cut_off = {id for id, ran in entries.items() if self.lease and ran.was_cut_off}
        # An interrupted batch entry is not repeated: the job may be in the queue.
        return [
            cron_entry
            for cron_entry in schedule.entries
            if (cron_entry.id in cut_off and not cron_entry.is_batch)
            or is_due(cron_entry, max(entries[cron_entry.id].since, floor), now, entries[cron_entry.id].started)
        ]

    def _run(self, entry: CronEntry, left: float) -> EntryRun:
        before, began = self.ledger.entries[entry.id], self.cron.clock.monotonic()
        started = self.cron.clock.now()
        since = max(started, self.slot or started)  # with an earlier `since`, `is_due` takes the clock for one ahead
        start = EntryRun(since=since, started=started, result=EntryResult.RUNNING, again=before.was_cut_off)
        self._note(entry, start)
        log.debug("%s: starts, %.0f s are left", entry.id, left)
        done = replace(start, result=EntryResult.FAILED, detail="ended together with the tick")
        try:
            done = self._outcome(entry, before, start, left)
        finally:
            done = replace(done, seconds=round(self.cron.clock.monotonic() - began, 3), again=False)
            self._note(entry, done)
        if done.result is EntryResult.OK:
            log.info("%s: ok in %.3g s", entry.id, done.seconds)
        else:
            self._problem(f"{entry.id}: {done.result}: {done.detail}")
        return done

    def _outcome(self, entry: CronEntry, before: EntryRun, start: EntryRun, left: float) -> EntryRun:
        try:
            if entry.refused:
                raise RunDirError(entry.refused)
            self.cron.check_trusted(entry)
        except OpsctlError as error:
            return replace(start, result=EntryResult.REFUSED, detail=error.message)
        settings, place = self.cron.settings, self.cron.place
        timeout_s = min(left, SUBMIT_TIMEOUT_S if entry.is_batch else settings.timeout_seconds)
        cwd = place.output if entry.is_batch else Path(self.cron.env.get("HOME", "/"))
        if not entry.is_batch and not cwd.is_dir():
            cwd = Path("/")
        try:
            done = run_bounded(
                entry.argv,
                env=entry_env(self.cron.env, entry),
                timeout=timeout_s,
                keep=KEEP_BYTES,
                cwd=cwd,
                pulse=self._pulse,
            )
        except OSError as error:
            return replace(start, result=EntryResult.FAILED, detail=f"cannot be started: {error.strerror}")
        ran = judge_submission(done, before, start) if entry.is_batch else judge_result(done, start, timeout_s)
        if entry.is_batch and ran.result is EntryResult.OK:
            return ran
        return replace(ran, output=keep_output(place.output, entry.id, self.cron.clock.now(), done.output))

    def _pulse(self) -> None:
        if self.cron.clock.monotonic() - self._alive < PULSE_S:
            return
        self._alive = self.cron.clock.monotonic()
        self.cron.place.touch(self.cron.clock.now())
        if self.lease:
            self.lease.refresh()

    def _end(self, ran: tuple[str, ...], seconds: float) -> None:
        settings, now = self.cron.settings, self.cron.clock.now()
        job = f", job {job}" if (job := own_job(self.cron.env)) else ""
        tick = TickRun(at=now, slot=self.slot, by=f"{hostname()}{job}", seconds=round(seconds, 3), ran=ran)
        self.ledger = replace(self.ledger, ticks=(*self.ledger.ticks, tick)[-MAX_TICKS:])
        self._write()
        self.cron.place.touch(now)
        prune(self.cron.place.output, now, keep=timedelta(days=settings.keep_days), files=settings.keep_files)

    def _note(self, entry: CronEntry, ran: EntryRun) -> None:
        self.ledger = replace(self.ledger, entries={**self.ledger.entries, entry.id: ran})
        self._write()

    def _write(self) -> None:
        try:
            write_ledger(self.cron.place, self.ledger)
            self._is_ledger_written = True
        except RunDirError as error:
            if self._is_ledger_written:
                self._problem(error.message)
            self._is_ledger_written = False

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        log.warning(text)


def judge_result(done: Bounded, start: EntryRun, timeout: float) -> EntryRun:
    if done.code is None:
        return replace(start, result=EntryResult.TIMEOUT, detail=f"ended after {timeout:.3g} s")
    if done.code == 0:
        return replace(start, result=EntryResult.OK)
    detail = f"exit {done.code}" if done.code > 0 else f"signal {-done.code}"
    return replace(start, result=EntryResult.FAILED, detail=detail)


def judge_submission(done: Bounded, before: EntryRun, start: EntryRun) -> EntryRun:
    if done.code == 0 and (match := JOB.fullmatch(done.output)):
        return replace(start, result=EntryResult.OK, detail=f"job {match[1].decode()}")
    if done.code and NOT_SUBMITTED.search(done.output):
        # The entry stays due for the next tick.
        return replace(start, since=before.since, result=EntryResult.FAILED, detail="Slurm did not answer; tried again")
    if done.code is None:
        return replace(start, result=EntryResult.UNKNOWN, detail="Slurm did not answer in time; a job may be queued")
    return replace(start, result=EntryResult.FAILED, detail=f"Slurm refused it: exit {done.code}")
