"""When the job will be ended, kept true: an administrator may move it, and the trainer plans its last save by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from opsctl.ports import Clock, Scheduler
from opsctl.state.run_dir import Attempt, RunDir

LONGEST, SHORTEST = 60.0, 5.0
NO_LIMIT = 525_600
"""Minutes: a year, where nothing ends the job."""


@dataclass(slots=True, kw_only=True)
class DeadlineFile:
    """The file with the job's end. Slurm is asked once a minute, and more often only in the last ten."""

    run: RunDir
    attempt: Attempt
    job: str
    scheduler: Scheduler
    clock: Clock
    end: datetime | None = None
    _next: float = field(default=0.0)

    def keep(self) -> bool:
        """Ask again if it is time to; whether it was. Raises OpsctlError, and then asks again in a minute."""
        now = self.clock.monotonic()
        if now < self._next:
            return False
        self._next = now + LONGEST
        end = self.scheduler.end_time(self.job)
        if end != self.end:
            self._write(end)
        self.end = end
        if end is not None:
            left = (end - self.clock.now()).total_seconds()
            self._next = now + min(LONGEST, max(SHORTEST, left / 10))
        return True

    def _write(self, end: datetime | None) -> None:
        if end is None:
            self.attempt.deadline.unlink(missing_ok=True)
        else:
            self.run.write(self.attempt.deadline, f"{end.astimezone(UTC).timestamp():.0f}\n")

    def minutes_left(self, margin: float) -> int:
        """Whole minutes until `margin` seconds before the end: at least one, for some trainers take 0 for never."""
        if self.end is None:
            return NO_LIMIT
        return max(1, int(((self.end - self.clock.now()).total_seconds() - margin) // 60))
