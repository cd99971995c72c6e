"""What is kept of millions of values: a curve of a few hundred bins, and a sample of a few thousand. Bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

BINS = 300
SAMPLES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The values of the steps from one bin: `low` and `high` keep the spikes that the mean hides."""

    step: int
    """The last of them."""
    mean: float
    low: float
    high: float


@dataclass(slots=True)
class BoundedCurve:
    """A value over the steps, in at most BINS bins: when there are more, each two become one."""

    width: int = 1
    bins: dict[int, list[float]] = field(default_factory=dict)
    """By step // width: count, sum, low, high, last step."""
    skipped: int = 0
    """Values that were no number."""

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self.skipped += 1
            return
        floats = self.bins.get(step // self.width)
        if floats is None:
            self.bins[step // self.width] = [1, value, value, value, step]
            if len(self.bins) > BINS:
                self._widen()
            return
        floats[0] += 1
        floats[1] += value
        floats[2] = min(floats[2], value)
        floats[3] = max(floats[3], value)
        floats[4] = max(floats[4], step)

    def _widen(self) -> None:
        self.width *= 2
        old, self.bins = self.bins, {}
        for key in sorted(old):
            count, total, low, high, step = old[key]
            into = self.bins.setdefault(key // 2, [0, 0.0, low, high, step])
            into[0] += count
            into[1] += total
            into[2:] = [min(into[2], low), max(into[3], high), max(into[4], step)]
        if len(self.bins) > BINS:
            self._widen()

    def points(self) -> tuple[Point, ...]:
        return tuple(
            Point(step=int(step), mean=total / count, low=low, high=high)
            for _, (count, total, low, high, step) in sorted(self.bins.items())
        )


@dataclass(slots=True)
class ValueSample:
    """Every so manieth of many values, evenly, never more than SAMPLES of them."""

    values: list[float] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def is_next(self) -> bool:
        """Whether the next of the values is wanted: to be asked once for each, and then to be added."""
        self._seen += 1
        return (self._seen - 1) % self._every == 0

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self.values.append(value)
            if len(self.values) >= SAMPLES:
                self.values = self.values[::2]
                self._every *= 2
