"""The deadline file: when Slurm will end the job.

An administrator may move the end of a job, and the trainer plans its last save by this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from opsctl.ports import Clock, Scheduler
from opsctl.state.run_dir import Attempt, RunDir

MAX_INTERVAL_S, MIN_INTERVAL_S = 60.0, 5.0
UNLIMITED_MINUTES = 525_600
"""One year: the value for a job without a time limit."""


@dataclass(slots=True, kw_only=True)
class DeadlineFile:
    """The deadline file of one attempt. Slurm is asked once a minute, and more often in the last ten minutes."""

    run: RunDir
    attempt: Attempt
    job: str
    scheduler: Scheduler
    clock: Clock
    end: datetime | None = None
    _next_query_s: float = field(default=0.0)

    def refresh(self) -> bool:
        """Ask Slurm for the job's end if a query is due; return whether one was due.

        Raises OpsctlError; the next query is then due in a minute.
        """
        now_s = self.clock.monotonic()
        if now_s < self._next_query_s:
            return False
        self._next_query_s = now_s + MAX_INTERVAL_S
        end = self.scheduler.end_time(self.job)
        if end != self.end:
            self._write(end)
        self.end = end
        if end is not None:
            left_s = (end - self.clock.now()).total_seconds()
            self._next_query_s = now_s + min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, left_s / 10))
        return True

    def _write(self, end: datetime | None) -> None:
        if end is None:
            self.attempt.deadline.unlink(missing_ok=True)
        else:
            self.run.write(self.attempt.deadline, f"{end.astimezone(UTC).timestamp():.0f}\n")

    def minutes_left(self, margin_s: float) -> int:
        """Return whole minutes until `margin_s` before the end. At least 1: some trainers read 0 as no deadline."""
        if self.end is None:
            return UNLIMITED_MINUTES
        return max(1, int(((self.end - self.clock.now()).total_seconds() - margin_s) // 60))
