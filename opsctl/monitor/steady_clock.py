"""The watchers' time: limits are judged by a time that does not jump, although the clock of a host may.

The watch cycles of a site share a time line. A host that has run a cycle before knows by its monotonic clock how much
time has passed; a clock that was set ahead or back moves the time line slowly. On a host without an earlier cycle, a
time that does not follow the earlier cycles counts after some cycles only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from opsctl.host.system import boot_id, hostname
from opsctl.ports import Clock
from opsctl.state.time_stamps import CLOCK_TOLERANCE
from opsctl.units import format_duration
from opsctl.watchdogs.context import WatchdogMemory

log = logging.getLogger(__name__)
TOLERANCE_S = CLOCK_TOLERANCE.total_seconds()
MAX_SLEW = 0.5
"""Share of the passed time by which a time line that is off approaches the clock in a cycle."""
MAX_SLEW_OFFSET_S, HOLD_S = 86_400.0, 3600.0
"""A clock that is off by more than a day counts at once after this time: to approach it would take too long."""
GAP_S, GAPS = 1800.0, 3
"""On a host without an earlier cycle, a pause of this length, and of this multiple of the last one, is plausible."""
DOUBTED_CYCLES = 3
"""An implausible time counts in the third cycle in a row that agrees on it."""
MAX_BOOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """What the clocks of a host show at the start of a cycle."""

    wall_s: float
    """Seconds since the epoch."""
    monotonic_s: float
    boot: str
    """The host and its boot: the monotonic clock starts anew with each boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """The time of the last cycle, and what the clocks of the hosts have to do with it."""

    at_s: float
    """Time of the last cycle, in seconds since the epoch."""
    gap_s: float = 0.0
    """Time between the last two cycles."""
    starts_s: Mapping[str, float] = field(default_factory=dict)
    """By boot, the time at which its monotonic clock showed zero; the boot of the last cycle last."""
    off_since_s: float | None = None
    """Since when a clock is off by more than a day."""
    doubted_s: float | None = None
    """The implausible time of the last cycle."""
    doubted_cycles: int = 0

    def advance(self, reading: ClockReading) -> TimeLine:
        """Return the time line after the start of a further cycle."""
        if reading.boot in self.starts_s:
            return self._follow(reading, self.starts_s[reading.boot] + reading.monotonic_s)
        if self._follows(self.at_s, reading.wall_s):
            return self._move(reading, reading.wall_s)
        is_same = self.doubted_s is not None and self._follows(self.doubted_s, reading.wall_s)
        count = self.doubted_cycles + 1 if is_same else 1
        if count >= DOUBTED_CYCLES:
            return self._move(reading, reading.wall_s)
        return replace(self, doubted_s=reading.wall_s, doubted_cycles=count)

    def _follow(self, reading: ClockReading, expected_s: float) -> TimeLine:
        """Return the time line after a cycle for which the monotonic clock says what the time is."""
        if expected_s < self.at_s - TOLERANCE_S:
            if self._follows(
                self.at_s, reading.wall_s
            ):  # a machine that was suspended: its monotonic clock stood still
                return self._move(reading, reading.wall_s)
            return self._go_back(expected_s)._follow(reading, expected_s)
        offset_s = reading.wall_s - expected_s
        if abs(offset_s) <= TOLERANCE_S:
            return self._move(reading, reading.wall_s)
        if abs(offset_s) <= MAX_SLEW_OFFSET_S:
            limit_s = MAX_SLEW * max(0.0, expected_s - self.at_s)
            return self._move(reading, expected_s + min(max(offset_s, -limit_s), limit_s))
        since_s = expected_s if self.off_since_s is None else self.off_since_s
        if expected_s - since_s >= HOLD_S:
            return self._move(reading, reading.wall_s)
        return replace(self._move(reading, expected_s), off_since_s=since_s)

    def _go_back(self, at_s: float) -> TimeLine:
        """Return the time line at `at_s`, without the node of the last cycle, which contradicts an earlier node."""
        return replace(self, at_s=at_s, starts_s=dict(list(self.starts_s.items())[:-1]))

    def _follows(self, at_s: float, wall_s: float) -> bool:
        return -TOLERANCE_S <= wall_s - at_s <= max(GAP_S, GAPS * self.gap_s)

    def _move(self, reading: ClockReading, at_s: float) -> TimeLine:
        others = {boot: start_s for boot, start_s in self.starts_s.items() if boot != reading.boot}
        starts_s = dict([*others.items(), (reading.boot, at_s - reading.monotonic_s)][-MAX_BOOTS:])
        return TimeLine(at_s=at_s, gap_s=max(0.0, at_s - self.at_s), starts_s=starts_s)


def start_line(reading: ClockReading) -> TimeLine:
    """Return the time line of a first cycle, whose clock counts as right."""
    return TimeLine(at_s=reading.wall_s, starts_s={reading.boot: reading.wall_s - reading.monotonic_s})


@dataclass(slots=True)
class SteadyClock:
    """The clock of this host, moved to the watchers' time by `settle`."""

    real: Clock
    boot: str = field(default_factory=lambda: boot_id() or hostname())
    _shift: timedelta = timedelta()

    def now(self) -> datetime:
        return self.real.now() + self._shift

    def monotonic(self) -> float:
        return self.real.monotonic()

    def sleep(self, seconds: float) -> None:
        self.real.sleep(seconds)

    def settle(self, memory: WatchdogMemory) -> None:
        """Move this clock to the watchers' time, at the start of a cycle."""
        wall = self.real.now()
        reading = ClockReading(wall_s=wall.timestamp(), monotonic_s=self.real.monotonic(), boot=self.boot)
        before = parse_line(memory.read("clock", "site"))
        line = before.advance(reading) if before else start_line(reading)
        memory.write("clock", "site", asdict(line))
        self._shift = datetime.fromtimestamp(line.at_s, UTC) - wall
        if abs(self._shift) > CLOCK_TOLERANCE:
            direction = "ahead of" if self._shift < timedelta() else "behind"
            log.warning(
                "the clock of %s is %s %s the time of earlier watch cycles, which counts; check the clock: date",
                hostname(),
                format_duration(abs(self._shift)),
                direction,
            )


def parse_line(fields: dict[str, Any]) -> TimeLine | None:
    """Return the remembered time line; None without a valid one."""
    try:
        return TimeLine(
            at_s=_parse_seconds(fields["at_s"]),
            gap_s=_parse_seconds(fields["gap_s"]),
            starts_s={str(boot): _parse_seconds(start_s) for boot, start_s in fields["starts_s"].items()},
            off_since_s=None if fields["off_since_s"] is None else _parse_seconds(fields["off_since_s"]),
            doubted_s=None if fields["doubted_s"] is None else _parse_seconds(fields["doubted_s"]),
            doubted_cycles=int(fields["doubted_cycles"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _parse_seconds(number: object) -> float:
    """Return seconds within the years that a date can have. Raises ValueError."""
    if not isinstance(number, int | float) or not abs(number) < 1e11:
        raise ValueError(f"{number!r} is no time")
    return float(number)
