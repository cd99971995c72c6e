"""The watchers' time: limits are judged by a time that does not jump, although the clock of a host may.

The watch cycles of a site share a time line. A host that has run a cycle before knows by its monotonic clock how much
time has passed; a clock that was set ahead or back moves the time line slowly. On a host without an earlier cycle, a
time that does not follow the earlier cycles counts after some cycles only.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.base.units import format_duration
from opsctl.host.system import boot_id, suspended_s
from opsctl.state.records import CLOCK_TOLERANCE
from opsctl.watchdogs.context import WatchdogMemory

log = logging.getLogger(__name__)
TOLERANCE_S = CLOCK_TOLERANCE.total_seconds()
MAX_SLEW = 0.5
"""Share of the passed time by which a time line that is off approaches the clock in a cycle."""
JUMP_S, HOLD_S = 1800.0, 3600.0
"""A clock that is off by more than half an hour does not count for an hour: mostly such a clock is wrong, and soon set
right."""
MAX_SLEW_OFFSET_S = 86_400.0
"""A clock that is off by more than a day then counts at once: to approach it would take too long."""
GAP_S, GAPS = 1800.0, 3
"""On a host without an earlier cycle, a pause of this length, and of this multiple of the last one, is plausible."""
DOUBTED_CYCLES, DOUBTED_S = 3, 300.0
"""An implausible time counts in the third cycle in a row that agrees on it, but not at once: a clock may be wrong for
the first minutes of a boot."""
MAX_BOOTS = 64
Seconds = Annotated[float, Field(ge=-1e10, le=1e10, allow_inf_nan=False)]
"""Within some three hundred years of 1970: a remembered time beyond is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """What the clocks of a host show at the start of a cycle."""

    wall_s: float
    """Seconds since the epoch."""
    monotonic_s: float
    """Seconds since the boot, with those of a suspended machine."""
    boot: str
    """The host and its boot: the monotonic clock starts anew with each boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """The time of the last cycle, and what the clocks of the hosts have to do with it."""

    at_s: Seconds
    """Time of the last cycle, in seconds since the epoch."""
    gap_s: Seconds = 0.0
    """Time between the last two cycles."""
    starts_s: Mapping[str, Seconds] = field(default_factory=dict)
    """By boot, the time at which its monotonic clock showed zero; the boot of the last cycle last."""
    off_since_s: Seconds | None = None
    """Since when a clock is off by more than half an hour."""
    doubted_s: Seconds | None = None
    """The implausible time of the last cycle."""
    doubted_since_s: Seconds | None = None
    """The implausible time of the first cycle in a row that agrees on it."""
    doubted_cycles: int = 0

    def advance(self, reading: ClockReading) -> "TimeLine":
        """Return the time line after the start of a further cycle."""
        if reading.boot in self.starts_s:
            return self._follow(reading, self.starts_s[reading.boot] + reading.monotonic_s)
        if _follows(self.at_s, reading.wall_s, self.gap_s):
            return self._move(reading, reading.wall_s)
        return self._doubt(reading)

    def _doubt(self, reading: ClockReading) -> "TimeLine":
        """Return the time line after a cycle with an implausible time, which counts only if it lasts."""
        wall_s, since_s, count = reading.wall_s, reading.wall_s, 1
        if self.doubted_s is not None and self.doubted_since_s is not None:
            gap_s = max(self.gap_s, self.doubted_s - self.at_s)  # rare cycles, or the first ones of a site
            if _follows(self.doubted_s, wall_s, gap_s):
                since_s, count = self.doubted_since_s, self.doubted_cycles + 1
        if count < DOUBTED_CYCLES or wall_s - since_s < DOUBTED_S:
            return replace(self, doubted_s=wall_s, doubted_since_s=since_s, doubted_cycles=count)
        is_back = wall_s < self.at_s - TOLERANCE_S
        # Back from a time that earlier nodes knew: they must not move the time ahead again, in a single cycle.
        return (replace(self, starts_s={}) if is_back else self)._move(reading, wall_s)

    def _follow(self, reading: ClockReading, expected_s: float) -> "TimeLine":
        """Return the time line after a cycle for which the monotonic clock says what the time is."""
        if expected_s < self.at_s - TOLERANCE_S:
            return self._contradict(reading, expected_s)
        offset_s = reading.wall_s - expected_s
        if abs(offset_s) <= TOLERANCE_S:
            return self._move(reading, reading.wall_s)
        limit_s = MAX_SLEW * max(0.0, expected_s - self.at_s)
        approached_s = expected_s + min(max(offset_s, -limit_s), limit_s)
        if abs(offset_s) <= JUMP_S:
            return self._move(reading, approached_s)
        since_s = self.off_since_s
        if since_s is None or since_s > expected_s:
            since_s = expected_s
        # A jump that lasts is believed at last: a clock that was wrong at the first cycle must not rule for ever.
        if expected_s - since_s < HOLD_S:
            return replace(self._move(reading, expected_s), off_since_s=since_s)
        if abs(offset_s) > MAX_SLEW_OFFSET_S:
            return self._move(reading, reading.wall_s)
        return replace(self._move(reading, approached_s), off_since_s=since_s)

    def _contradict(self, reading: ClockReading, expected_s: float) -> "TimeLine":
        """Return the time line after a cycle whose monotonic clock is behind the last cycle."""
        if _follows(self.at_s, reading.wall_s, self.gap_s):
            return self._move(reading, reading.wall_s)  # the clock of a suspended virtual machine stood still
        *others, last = self.starts_s
        if last == reading.boot:
            return self._doubt(reading)  # no other node contradicts: this machine was restored from an earlier state
        line = replace(self, at_s=expected_s, starts_s={boot: self.starts_s[boot] for boot in others})
        return line._follow(reading, expected_s)

    def _move(self, reading: ClockReading, at_s: float) -> "TimeLine":
        others = {boot: start_s for boot, start_s in self.starts_s.items() if boot != reading.boot}
        starts_s = dict([*others.items(), (reading.boot, at_s - reading.monotonic_s)][-MAX_BOOTS:])
        return TimeLine(at_s=at_s, gap_s=max(0.0, at_s - self.at_s), starts_s=starts_s)


def _follows(at_s: float, wall_s: float, gap_s: float) -> bool:
    """Return whether a cycle at `wall_s` may come after one at `at_s`, where the last pause was `gap_s`."""
    return -TOLERANCE_S <= wall_s - at_s <= max(GAP_S, GAPS * gap_s)


def start_line(reading: ClockReading) -> "TimeLine":
    """Return the time line of a first cycle, whose clock counts as right."""
    return TimeLine(at_s=reading.wall_s, starts_s={reading.boot: reading.wall_s - reading.monotonic_s})


@dataclass(slots=True)
class SteadyClock:
    """The clock of this host, moved to the watchers' time by `settle`."""

    real: Clock
    boot: str = field(default_factory=lambda: boot_id() or hostname())
    suspended_s: Callable[[], float] = suspended_s
    _settled: tuple[datetime, float] | None = None
    """The watchers' time at the start of the cycle, and what the monotonic clock showed then."""

    def now(self) -> datetime:
        if self._settled is None:
            return self.real.now()
        at, monotonic_s = self._settled
        return at + timedelta(seconds=self._read_monotonic_s() - monotonic_s)

    def monotonic(self) -> float:
        return self.real.monotonic()

    def sleep(self, seconds: float) -> None:
        self.real.sleep(seconds)

    def _read_monotonic_s(self) -> float:
        return self.real.monotonic() + self.suspended_s()

    def settle(self, memory: WatchdogMemory) -> None:
        """Move this clock to the watchers' time, at the start of a cycle."""
        wall = self.real.now()
        reading = ClockReading(wall_s=wall.timestamp(), monotonic_s=self._read_monotonic_s(), boot=self.boot)
        before = memory.find(TimeLine, "clock", "site")
        line = before.advance(reading) if before else start_line(reading)
        memory.remember("clock", "site", line)
        self._settled = datetime.fromtimestamp(line.at_s, UTC), reading.monotonic_s
        offset = wall - self._settled[0]
        if abs(offset) > CLOCK_TOLERANCE:
            direction = "ahead of" if offset > timedelta() else "behind"
            log.warning(
                "the clock of %s is %s %s the time of earlier watch cycles, which counts; check the clock: date",
                hostname(),
                format_duration(abs(offset)),
                direction,
            )
