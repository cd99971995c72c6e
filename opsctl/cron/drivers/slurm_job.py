"""The slurm driver: a small job that submits its successor, does one tick, and makes sure that the successor stays.

There is at most one successor, known by its comment; two ticks never run at once, for they share a name and depend on
`singleton`. Whoever looks, the tick itself, a verb or a guard, does the same: see to it that there is one.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.cron.context import CronContext
from opsctl.cron.drivers.selected_driver import SelectedDriver, read_wanted, write_wanted
from opsctl.cron.sbatch import sbatch
from opsctl.errors import OpsctlError, RunDirError, SchedulerError, Unreachable
from opsctl.model import Job, JobState
from opsctl.ports import Runner, Scheduler
from opsctl.render import render
from opsctl.settings.loader import SlurmDefaults
from opsctl.state.journal import actor
from opsctl.state.lease import lease

NAME = "slurm"
ON_DISK = 8.0
"""Seconds. A slurmctld that is killed forgets what it was given in the last five."""
AGAIN = 3.0
MOST = 5
"""So many successors in one tick: whatever makes them vanish, more of them are no help."""
HELD_BACK = ("BeginTime", "Dependency")
"""It waits because it was told to, not for want of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmDriver:
    cron: CronContext
    scheduler: Scheduler
    runner: Runner
    defaults: SlurmDefaults
    python: str
    site_file: Path | None

    @property
    def mark(self) -> str:
        """The jobs' comment: the same for every tick of this site's cron, and for no other."""
        root = str(self.cron.place.site.path)
        return f"opsctl-cron:{hashlib.sha256(root.encode(errors='surrogateescape')).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """The jobs' name, by which `singleton` knows them."""
        return self.mark.replace(":", "-")

    def jobs(self) -> list[Job]:
        """The ticks that wait or run. Raises Unreachable."""
        me = actor()
        found = [job for job in self.scheduler.jobs() if job.user == me and self._is_tick(job)]
        return sorted((job for job in found if not job.state.is_final), key=lambda job: int(job.id))

    def start(self) -> tuple[str, bool]:
        """The job that ticks next, and whether it was there already. Raises SchedulerError."""
        with self._lease():
            before = self._is_wanted()
            # A tick that runs since before a stop may have looked for its successor already.
            there = [job for job in self.jobs() if before or job.state.is_waiting]
            self._want(before=before)
            if there:
                return there[-1].id, True
            try:
                return self._submit(self.cron.clock.now()), False
            except SchedulerError as error:
                if not before and not isinstance(error, Unreachable):
                    self.cron.place.wanted.unlink(missing_ok=True)
                raise

    def stop(self) -> list[str]:
        """Cancel what waits; a tick that runs comes to its end and has no successor. Raises Unreachable."""
        with self._lease():
            self.cron.place.wanted.unlink(missing_ok=True)
            waiting = [job.id for job in self.jobs() if job.state.is_waiting]
            for job in waiting:
                self.scheduler.cancel(job)
        return waiting

    def ensure(self, *, after: datetime, own: str = "") -> str | None:
        """The one job that ticks next, submitted now if there is none; None if none is wanted any more.

        `own` is the job that asks; of whoever else asks, a tick at work is the answer. Raises SchedulerError.
        """
        with self._lease():
            if not self._is_wanted():
                return None
            jobs = self.jobs()
            if not own and (at_work := [job for job in jobs if job.state is JobState.RUNNING]):
                return at_work[0].id
            waiting = [job for job in jobs if job.state.is_waiting and job.id != own]
            kept = [job for job in waiting if not self._is_astray(job)][:1]
            for job in waiting:
                if job not in kept:
                    self.scheduler.cancel(job.id)
            return kept[0].id if kept else self._submit(self.next_slot(after))

    def follow(self, slot: datetime, own: str, *, seconds: float) -> bool:
        """Before a tick ends: whether its successor is there, and has been for so long that Slurm will not forget it.

        Where Slurm does not answer or refuses, ask again for up to `seconds`.
        """
        clock = self.cron.clock
        late, known, since, seen = clock.monotonic() + seconds, "", 0.0, set[str]()
        finalized = min(ON_DISK, self.cron.settings.every / 2)
        while True:
            try:
                job = self.ensure(after=slot, own=own)
                if job is None or (job == known and clock.monotonic() - since >= finalized):
                    return True
                if job != known:
                    known, since = job, clock.monotonic()
                    seen.add(job)
            except OpsctlError as error:
                known = ""
                self.cron.say(f"the next tick: {error.message}")
            if clock.monotonic() > late or len(seen) > MOST:
                return False
            clock.sleep(min(AGAIN, finalized))

    def next_slot(self, after: datetime) -> datetime:
        """The first time on the grid that is later than now and than `after`, the slot of the tick that asks: a node
        whose clock is behind would else be given its own slot again."""
        latest = max(after, self.cron.clock.now()).timestamp()
        every = self.cron.settings.every
        return datetime.fromtimestamp((latest // every + 1) * every, UTC)

    def _is_tick(self, job: Job) -> bool:
        # Either will do: some sites write comments of their own.
        return job.comment == self.mark or job.name == self.name

    def _is_astray(self, job: Job) -> bool:
        """It waits for a time far away, which only a clock that was wrong can have meant."""
        far = self.cron.clock.now() + timedelta(seconds=3 * self.cron.settings.every)
        return job.state.is_waiting and job.reason in HELD_BACK and job.start is not None and job.start > far

    def _is_wanted(self) -> bool:
        """A file that cannot be read is no reason to end."""
        try:
            wanted = read_wanted(self.cron.place)
        except (OSError, ValueError):
            return True
        return wanted is not None and wanted.driver == NAME

    def _want(self, *, before: bool) -> None:
        if not before:
            write_wanted(self.cron.place, SelectedDriver(driver=NAME, since=self.cron.clock.now(), by=actor()))

    def _submit(self, slot: datetime) -> str:
        begin = f"--begin=uts{slot.timestamp():.0f}"  # since the epoch, which knows no summer time
        return sbatch(self.runner, self.cron.env, self.script(slot), options=(begin,))

    def script(self, slot: datetime) -> str:
        return render(
            "slurm/cron.slurm.j2", directives=self.directives(), slot=f"{slot.timestamp():.0f}", python=self.python,
            site_file=str(self.site_file or ""), wanted=str(self.cron.place.wanted),
            output=str(self.cron.place.output), every=self.cron.settings.every,
        )  # fmt: skip

    def directives(self) -> list[str]:
        """`--key=value` for each `#SBATCH` line."""
        settings, defaults = self.cron.settings, self.defaults
        said: Mapping[str, str] = {
            "--job-name": self.name,
            "--comment": self.mark,
            "--dependency": "singleton",
            "--time": settings.time_limit,
            "--nodes": "1",
            "--ntasks": "1",
            "--mem": settings.memory,
            "--partition": settings.partition or defaults.partition,
            "--account": settings.account or defaults.account,
            "--qos": settings.qos or ("" if settings.partition else defaults.qos),
            # A directory that is gone would make Slurm fail the job before it could submit its successor.
            "--output": "/dev/null",
            "--chdir": "/",
        }
        return [f"{key}={value}" for key, value in said.items() if value] + ["--no-requeue", *settings.extra]

    @contextlib.contextmanager
    def _lease(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lease(self.cron.place.driver, self.cron.clock, wait=20))
            except RunDirError as error:
                self.cron.say(f"without a lease: {error.message}")
            yield
