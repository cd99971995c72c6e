"""A clock for tests."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class FakeClock:
    """Moves only when told; those who sleep move it."""

    time: datetime

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
