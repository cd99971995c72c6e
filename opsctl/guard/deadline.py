"""The deadline file: when Slurm will end the job.

An administrator may move the end of a job, and the trainer plans its last save by this file.
"""

import math
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Clock
from opsctl.base.units import parse_slurm_minutes
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import read_toml
from opsctl.slurm.job_environment import own_end
from opsctl.state.run_dir import Attempt, RunDir

MIN_INTERVAL_S = 5.0
JITTER = 0.2
"""Guards that started together, as of many trains after a maintenance, must not ask together for days."""
UNLIMITED_MINUTES = 525_600
"""One year: the value for a job without a time limit."""
FIRST_ANSWER_S = 1.0
"""How long the body waits for Slurm's first answer: a busy controller must not delay the ranks."""


@dataclass(slots=True)
class DeadlineFile:
    """The deadline file of one attempt. Slurm is asked every `every_s`, and more often near the end."""

    arrays: TrainArrays
    attempt: Attempt
    job: str
    clock: Clock
    every_s: float
    draw: Callable[[float, float], float] = random.uniform
    end: datetime | None = None
    _next_query_s: float = field(default=0.0)
    _expected: datetime | None = None
    """The end that is assumed until Slurm has answered."""
    _first: threading.Thread | None = None

    def begin(self, env: Mapping[str, str], tolerated: Callable[[str], AbstractContextManager[None]]) -> None:
        """Ask Slurm for the first time, in a thread. `tolerated` reports the errors of a named step."""
        self._expected = expect_end(self.arrays.run, env, self.clock.now())

        def ask() -> None:
            with tolerated("asking for the job's end"):
                self.refresh()

        self._first = threading.Thread(target=ask, daemon=True)
        self._first.start()

    def await_first_answer(self) -> None:
        """Wait for Slurm's answer, FIRST_ANSWER_S at most. A later answer still writes the file."""
        if self._first:
            self._first.join(FIRST_ANSWER_S)

    def refresh(self) -> bool:
        """Ask Slurm for the job's end if a query is due; return whether one was due. Raises OpsctlError."""
        now_s = self.clock.monotonic()
        if now_s < self._next_query_s:
            return False
        interval_s = self.every_s * self.draw(1 - JITTER, 1 + JITTER)
        self._next_query_s = now_s + interval_s
        end = self.arrays.slurm.end_time(self.job)
        self._expected = end
        if end != self.end:
            self._write(end)
        self.end = end
        if end is not None:
            left_s = (end - self.clock.now()).total_seconds()
            self._next_query_s = now_s + min(interval_s, max(MIN_INTERVAL_S, left_s / 10))
        return True

    def _write(self, end: datetime | None) -> None:
        if end is None:
            self.attempt.deadline.unlink(missing_ok=True)
        else:
            self.arrays.run.write(self.attempt.deadline, f"{end.astimezone(UTC).timestamp():.0f}\n")

    def minutes_left(self, margin_s: float) -> int:
        """Return whole minutes until `margin_s` before the end. At least 1: some trainers read 0 as no deadline."""
        end = self.end or self._expected
        if end is None:
            return UNLIMITED_MINUTES
        return max(1, int(((end - self.clock.now()).total_seconds() - margin_s) // 60))


def expect_end(run: RunDir, env: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the end of a task that starts `now`, without asking Slurm; None if unknown or without a limit.

    A newer Slurm names the end in the job's environment. Otherwise, the limit in train.toml counts.
    """
    if end := own_end(env):
        return end
    limit_s = read_limit_s(run.config)
    return now + timedelta(seconds=limit_s) if math.isfinite(limit_s) else None


def read_limit_s(config: Path) -> float:
    """Return the time limit of a task in seconds; infinite if train.toml cannot be read."""
    try:
        minutes = parse_slurm_minutes(str(read_toml(config)["slurm"]["time_limit"]))
    except (OpsctlError, KeyError, TypeError):
        minutes = None
    return minutes * 60.0 if minutes else math.inf
