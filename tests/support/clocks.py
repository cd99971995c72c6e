"""A clock for tests."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class FakeClock:
    """A clock that moves only when the test sets it or the code under test sleeps."""

    time: datetime

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
