"""The times in the log of one attempt, in the time zone of the attempt's own start and end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.telemetry.progress.log_summary import UNKNOWN, LogPart, LogStep

WHOLE_SECONDS_TOLERANCE_S = 1.0
FRACTIONS_TOLERANCE_S = 0.1
"""A logged time may be off by this much, because the trainer rounds the time."""
MAX_OUTSIDE_S = 3600.0
"""A time further before or after its attempt belongs to another clock, or is a date in a text."""
MIN_SETBACK_S = 60.0
"""Smaller steps back are differences between the clocks of ranks; larger ones are a clock that was set back."""
ZONE_STEP_S = 900.0
"""Time zones differ by multiples of 15 minutes."""
MAX_ZONE_DIFFERENCE_S = 26 * 3600.0
"""From UTC-12 to UTC+14."""


@dataclass(slots=True)
class AttemptClock:
    """A clock that never goes back: a clock that was set back continues from its last time."""

    begin: float
    end: float
    log: LogPart
    shift_s: float = field(init=False)

    def __post_init__(self) -> None:
        offset_s = self.begin - self.log.first_stamp
        is_near = -MAX_OUTSIDE_S <= -offset_s <= self.end - self.begin + MAX_OUTSIDE_S
        is_zone = abs(offset_s) < MAX_ZONE_DIFFERENCE_S  # False for nan
        self.shift_s = round(offset_s / ZONE_STEP_S) * ZONE_STEP_S if is_zone and not is_near else 0.0

    @property
    def tolerance_s(self) -> float:
        return FRACTIONS_TOLERANCE_S if self.log.has_fractions else WHOLE_SECONDS_TOLERANCE_S

    def read(self, line: LogStep, now: float, took_s: float) -> tuple[float, float]:
        """Return the earliest and the latest end of the line's steps, nan where unknown."""
        earliest, latest = self._shifted(line.earliest), self._shifted(line.latest)
        is_set_back = latest < now - self.tolerance_s - MIN_SETBACK_S
        if is_set_back:
            self.shift_s += now + took_s - latest
            return UNKNOWN, UNKNOWN
        return earliest, latest

    def _shifted(self, stamp: float) -> float:
        """Return a logged time in the attempt's zone, nan if the time cannot belong to the attempt."""
        at = stamp + self.shift_s
        is_inside = self.begin - MAX_OUTSIDE_S <= at <= self.end + MAX_OUTSIDE_S
        return at if is_inside else UNKNOWN
