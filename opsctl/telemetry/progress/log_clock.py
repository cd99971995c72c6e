"""The times in the log of one attempt, in the zone of whoever tells when the attempt was. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.telemetry.progress.log_summary import NOTHING, LogPart, LogStep

COARSE, FINE = 1.0, 0.1
"""Seconds by which a time in a log may be off: by how it is rounded."""
FAR = 3600.0
"""Seconds before or after its attempt that a time may be; what is further off is another clock, or a date in a text."""
BACK = 60.0
"""Seconds by which a clock that was put back differs from ranks that do not quite agree."""
QUARTER = 900.0
"""Time zones differ by multiples of it."""


@dataclass(slots=True)
class AttemptClock:
    """Never goes back: a clock that is put back goes on from where it was."""

    begin: float
    end: float
    told: LogPart
    shift: float = field(init=False)

    def __post_init__(self) -> None:
        off = self.begin - self.told.first_stamp
        is_near = -FAR <= -off <= self.end - self.begin + FAR
        self.shift = 0.0 if is_near or not abs(off) < 26 * 3600 else round(off / QUARTER) * QUARTER

    @property
    def tolerance(self) -> float:
        return FINE if self.told.fine else COARSE

    def read(self, line: LogStep, now: float, took: float) -> tuple[float, float]:
        """When the line's steps were done at the earliest and at the latest; nan where that is not known."""
        low, high = self._checked(line.low), self._checked(line.high)
        if high < now - self.tolerance - BACK:  # the clock was put back
            self.shift += now + took - high
            return NOTHING, NOTHING
        return low, high

    def _checked(self, at: float) -> float:
        at += self.shift
        return at if self.begin - FAR <= at <= self.end + FAR else NOTHING
