"""Scales of axes, and the positions and labels of their ticks. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import product

_HOUR_S, _DAY_S = 3600, 86400
_SHORT_STEPS_S = (1, 5, 15, 60, 300, 900, 1800)
_HOUR_STEPS_S = tuple(hours * _HOUR_S for hours in (1, 2, 3, 6, 12))
_DAY_STEPS_S = tuple(days * _DAY_S for days in (1, 2, 7, 14, 28, 91, 365))
_STEPS_S = (*_SHORT_STEPS_S, *_HOUR_STEPS_S, *_DAY_STEPS_S)
"""Distances of ticks on an axis of time."""
_LOG_DIGITS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)


@dataclass(frozen=True, slots=True)
class AxisTick:
    at: float
    """Percent of the axis."""
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, from 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def ticks(self, values: Sequence[float]) -> tuple[AxisTick, ...]:
        return tuple(
            AxisTick(100 * self.at(value), format_number(value))
            for value in values
            if self.low <= value <= self.high * 1.000001
        )


def format_number(value: float) -> str:
    """Return a short label: `2e-5`, `0.5`, `1,500`, `20k`, `1.5M`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):g}{suffix}"
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:,.10g}"


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`, evenly spaced, about `most` of them."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    unit = 10 ** math.floor(math.log10(span / most))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (unit * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(step * (first + at), 12) for at in range(most + 1) if step * (first + at) <= high + step * 1e-9]


def loss_scale(low: float, high: float) -> tuple[Scale, tuple[AxisTick, ...]]:
    """Return a scale for a loss and its ticks: logarithmic for a loss that fell far, whose end would look flat."""
    if low > 0 and high > 3 * low:
        scale = Scale(low=low / 1.05, high=high * 1.05, is_log=True)
        tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [digit * 10.0**ten for ten, digit in product(tens, _LOG_DIGITS)]
        inside = [mark for mark in marks if scale.low <= mark <= scale.high]
        while len(inside) > 8:
            inside = inside[::2]
        return scale, scale.ticks(inside)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    scale = Scale(low=low - margin, high=high + margin)
    return scale, scale.ticks(even_ticks(scale.low, scale.high, 6))


def time_ticks(
    begin: datetime, end: datetime, *, most: int = 8, is_timed: bool = True, zone: tzinfo | None = None
) -> tuple[AxisTick, ...]:
    """Return ticks at round times of `zone`, by default the local one.

    Without known times of day, the ticks are at round times since the beginning.
    """
    span = (end - begin).total_seconds()
    if not span > 0:
        return ()
    step_s = next((step_s for step_s in _STEPS_S if span / step_s <= most), _STEPS_S[-1])
    if not is_timed:
        return tuple(AxisTick(100 * at / span, _elapsed_label(at, step_s)) for at in range(0, int(span) + 1, step_s))
    local = begin.astimezone(zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight + timedelta(seconds=step_s * math.ceil((local - midnight).total_seconds() / step_s))
    ticks = []
    for count in range(most + 2):
        at = first + timedelta(seconds=step_s * count)
        if at <= end:
            ticks.append(AxisTick(100 * (at - begin).total_seconds() / span, _time_label(at, step_s)))
    return tuple(ticks)


def _time_label(at: datetime, step_s: int) -> str:
    if step_s >= _DAY_S or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step_s < 60 else f"{at:%H:%M}"


def _elapsed_label(seconds: float, step_s: int) -> str:
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (60, "min")):
        if step_s >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
