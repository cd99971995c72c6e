"""The slurm driver: a small job that submits its successor, runs one tick, and checks that the successor stays queued.

There is at most one successor, known by its comment. Two ticks never run at once: the jobs share a name and depend on
`singleton`. The tick itself, every `opsctl` command and the guard all do the same: make sure that one successor exists.
"""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.base.errors import OpsctlError, SlurmError, Unreachable
from opsctl.base.model import Job, JobState
from opsctl.base.ports import Runner
from opsctl.cron.cron_context import CronContext
from opsctl.cron.cron_dir import SelectedDriver, read_selected, write_selected
from opsctl.cron.drivers.export import NAME as EXPORT
from opsctl.launch.render import render
from opsctl.settings.loader import SlurmDefaults
from opsctl.slurm.commands import Slurm, submit_script
from opsctl.state.journal import actor
from opsctl.state.lease import HeldLease, lease_if_possible

log = logging.getLogger(__name__)
NAME = "slurm"
PERSISTED_AFTER_S = 8.0
"""A killed slurmctld forgets the submissions of its last five seconds."""
POLL_S = 3.0
MAX_SUCCESSORS_PER_TICK = 5
"""A tick stops submitting after this many vanished successors: more submissions do not help."""
WAITS_BY_REQUEST = ("BeginTime", "Dependency")
"""Slurm's reasons for a job that waits as requested, not for want of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmDriver:
    cron: CronContext
    slurm: Slurm
    runner: Runner
    defaults: SlurmDefaults
    python: str
    site_file: Path | None

    @property
    def mark(self) -> str:
        """The comment of the jobs: the same for every tick of this site's cron, different for every other site."""
        root = str(self.cron.place.site.path)
        return f"opsctl-cron:{hashlib.sha256(root.encode(errors='surrogateescape')).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """The name of the jobs, on which `singleton` works."""
        return self.mark.replace(":", "-")

    def jobs(self) -> list[Job]:
        """Return the waiting and running ticks of this user. Raises Unreachable."""
        user = actor()
        own = [job for job in self.slurm.jobs() if job.user == user and not job.state.is_final]
        # Either is enough: some sites overwrite comments.
        return sorted(
            (job for job in own if job.comment == self.mark or job.name == self.name), key=lambda job: int(job.id)
        )

    def start(self) -> tuple[str, bool]:
        """Return the id of the next tick's job, and whether the job existed already. Raises SlurmError."""
        with self._lease():
            was_selected = self._is_selected()
            # A running tick from before a stop may have checked for its successor already: only waiting jobs count.
            jobs = [job for job in self.jobs() if was_selected or job.state.is_waiting]
            if not was_selected:
                selected = SelectedDriver(driver=NAME, since=self.cron.clock.now(), by=actor())
                write_selected(self.cron.place, selected)
            if jobs:
                return jobs[-1].id, True
            try:
                return self._submit(self.cron.clock.now()), False
            except SlurmError as error:
                if not was_selected and not isinstance(error, Unreachable):
                    self.cron.place.selected.unlink(missing_ok=True)
                raise

    def stop(self) -> list[str]:
        """Cancel the waiting ticks; a running tick ends without a successor. Raises Unreachable."""
        with self._lease():
            self.cron.place.selected.unlink(missing_ok=True)
            waiting = [job.id for job in self.jobs() if job.state.is_waiting]
            for job in waiting:
                self.slurm.cancel(job)
        return waiting

    def ensure(self, *, after: datetime, own: str = "") -> str | None:
        """Return the id of the next tick's job, submitting one if there is none; None if the driver is not selected.

        `own` is the id of the tick that asks, empty for other callers. For other callers, a running tick suffices.
        Raises SlurmError.
        """
        with self._lease():
            if not self._is_selected():
                return None
            jobs = self.jobs()
            running = [job for job in jobs if job.state is JobState.RUNNING]
            if running and not own:
                return running[0].id
            waiting = [job for job in jobs if job.state.is_waiting and job.id != own]
            successor = next((job for job in waiting if not self._is_astray(job)), None)
            for job in waiting:
                if job is not successor:
                    self.slurm.cancel(job.id)
            return successor.id if successor else self._submit(self.next_slot(after))

    def follow(self, slot: datetime, own: str, *, seconds: float) -> bool:
        """Return whether the successor exists and is old enough that Slurm does not forget the job.

        Called at the end of a tick. Retries for up to `seconds` while Slurm does not answer or refuses.
        """
        clock = self.cron.clock
        deadline_s = clock.monotonic() + seconds
        stable_s = min(PERSISTED_AFTER_S, self.cron.settings.every / 2)
        successors: set[str] = set()
        current, current_since_s = "", 0.0
        while True:
            try:
                job = self.ensure(after=slot, own=own)
            except OpsctlError as error:
                current = ""
                log.warning("the next tick: %s", error.message)
            else:
                if job is None:
                    return True
                if job == current and clock.monotonic() - current_since_s >= stable_s:
                    return True
                if job != current:
                    current, current_since_s = job, clock.monotonic()
                    successors.add(job)
            if clock.monotonic() > deadline_s or len(successors) > MAX_SUCCESSORS_PER_TICK:
                return False
            clock.sleep(min(POLL_S, stable_s))

    def revive(self) -> str:
        """Submit the next tick if ticks are overdue and none is queued; return a sentence about the action.

        Reads two files and does not call Slurm while ticks are on time. Raises OpsctlError.
        """
        place, now = self.cron.place, self.cron.clock.now()
        if not place.is_overdue(self.cron.settings.every, now):
            return ""
        last = place.last_tick()
        since = f"no tick since {last:%Y-%m-%d %H:%M} UTC" if last else "no tick ever came"
        selected = read_selected(place)
        if selected and selected.driver == EXPORT:
            return f"cron: {since}: does the scheduler of {selected.host} still have the line of `opsctl cron export`?"
        if selected and selected.driver not in {"", NAME}:
            return f"cron: {since}: opsctl cron start {selected.driver} brings it back"
        before = {job.id for job in self.jobs()}
        job = self.ensure(after=now)
        # A job that already existed waits for a node or runs for long.
        return "" if job is None or job in before else f"cron: {since}: submitted the next one as job {job}"

    def next_slot(self, after: datetime) -> datetime:
        """Return the first time on the grid later than now and than `after`, the slot of the asking tick.

        Without `after`, a node with a slow clock would get its own slot again.
        """
        latest = max(after, self.cron.clock.now()).timestamp()
        every = self.cron.settings.every
        return datetime.fromtimestamp((latest // every + 1) * every, UTC)

    def _is_astray(self, job: Job) -> bool:
        """Return whether the job waits for a time so far ahead that a wrong clock must have set the time."""
        far = self.cron.clock.now() + timedelta(seconds=3 * self.cron.settings.every)
        return job.state.is_waiting and job.reason in WAITS_BY_REQUEST and job.start is not None and job.start > far

    def _is_selected(self) -> bool:
        """Return whether this driver is selected; an unreadable file counts as selected, so that ticks go on."""
        selected = read_selected(self.cron.place)
        return selected is not None and selected.driver in {"", NAME}

    def _submit(self, slot: datetime) -> str:
        begin = f"--begin=uts{slot.timestamp():.0f}"  # since the epoch, which knows no summer time
        job = submit_script(self.runner, self.cron.env, self.script(slot), options=(begin,))
        log.info("submitted the tick of %s as job %s", f"{slot:%Y-%m-%dT%H:%M:%SZ}", job)
        return job

    def script(self, slot: datetime) -> str:
        return render(
            "slurm/cron.slurm.j2",
            directives=self.directives(),
            slot=f"{slot.timestamp():.0f}",
            python=self.python,
            site_file=str(self.site_file or ""),
            wanted=str(self.cron.place.selected),
            output=str(self.cron.place.output),
            every=self.cron.settings.every,
        )

    def directives(self) -> list[str]:
        """Return `--key=value` for each `#SBATCH` line."""
        settings, defaults = self.cron.settings, self.defaults
        options: Mapping[str, str] = {
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
            # Slurm fails a job whose working directory is gone before the job can submit its successor.
            "--output": "/dev/null",
            "--chdir": "/",
        }
        return [f"{key}={value}" for key, value in options.items() if value] + ["--no-requeue", *settings.extra]

    def _lease(self) -> AbstractContextManager[HeldLease | None]:
        return lease_if_possible(self.cron.place.driver, self.cron.clock, wait=20, warn=log.warning)
