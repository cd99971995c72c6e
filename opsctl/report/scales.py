"""Where the ticks of an axis go, and how they are labelled. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

_HOUR, _DAY = 3600, 86400
_STEPS = (1, 5, 15, 60, 300, 900, 1800, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY,
          14 * _DAY, 28 * _DAY, 91 * _DAY, 365 * _DAY)  # fmt: skip
_LOG = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)


@dataclass(frozen=True, slots=True)
class AxisTick:
    at: float
    """Per cent of the axis."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, value = (map(math.log, (self.low, self.high, max(value, self.low)))
                            if self.is_log else (self.low, self.high, value))  # fmt: skip
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def ticks(self, values: Sequence[float]) -> tuple[AxisTick, ...]:
        return tuple(
            AxisTick(100 * self.at(value), number(value))
            for value in values
            if self.low <= value <= self.high * 1.000001
        )


def number(value: float) -> str:
    """`0.5`, `1,500`, `20k`, `1.5M`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):g}{suffix}"
    return f"{value:,.10g}"


def even(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from `low` to `high`, evenly spaced."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    unit = 10 ** math.floor(math.log10(span / most))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10, 20) if span / (unit * each) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(step * (first + at), 12) for at in range(most + 1) if step * (first + at) <= high + step * 1e-9]


def loss_scale(low: float, high: float) -> tuple[Scale, tuple[AxisTick, ...]]:
    """Logarithmic where a loss fell far: else its end, which matters most, would be a flat line."""
    if low > 0 and high > 3 * low:
        scale = Scale(low=low / 1.05, high=high * 1.05, is_log=True)
        tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [digit * 10.0**ten for ten in tens for digit in _LOG]
        inside = [mark for mark in marks if scale.low <= mark <= scale.high]
        while len(inside) > 8:
            inside = inside[::2]
        return scale, scale.ticks(inside)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    scale = Scale(low=low - margin, high=high + margin)
    return scale, scale.ticks(even(scale.low, scale.high, 6))


def moments(begin: datetime, end: datetime, *, most: int = 8, is_timed: bool = True) -> tuple[AxisTick, ...]:
    """Round local times; where nobody knows when it was, round times since the beginning."""
    span = (end - begin).total_seconds()
    if not span > 0:
        return ()
    step = next((literal for literal in _STEPS if span / literal <= most), _STEPS[-1])
    if not is_timed:
        return tuple(AxisTick(100 * at / span, _since(at, step)) for at in range(0, int(span) + 1, step))
    local = begin.astimezone()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight + timedelta(seconds=step * math.ceil((local - midnight).total_seconds() / step))
    found = []
    for count in range(most + 2):
        at = first + timedelta(seconds=step * count)
        if at <= end:
            found.append(AxisTick(100 * (at - begin).total_seconds() / span, _label(at, step)))
    return tuple(found)


def _label(at: datetime, step: int) -> str:
    if step >= _DAY or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"


def _since(seconds: float, step: int) -> str:
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (60, "min")):
        if step >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
