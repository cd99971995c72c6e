"""A curve of millions of values in bounded memory: 300 bins."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_BINS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The values of one bin. `low` and `high` show the spikes that the mean hides."""

    step: float
    """The last step of the bin; in a report of a trainer that logs no steps, the last epoch."""
    mean: float
    low: float
    high: float


@dataclass(slots=True)
class _Bin:
    count: int
    total: float
    low: float
    high: float
    last_step: int

    def add_value(self, step: int, value: float) -> None:
        self.count += 1
        self.total += value
        if not self.low <= value <= self.high:
            self.low, self.high = min(self.low, value), max(self.high, value)
        self.last_step = max(self.last_step, step)

    def add(self, other: "_Bin") -> None:
        self.count += other.count
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.last_step = max(self.last_step, other.last_step)


@dataclass(slots=True)
class BoundedCurve:
    """A value over the steps, in at most MAX_BINS bins. When there are more, every two bins become one."""

    width: int = 1
    """Steps in a bin."""
    bins: dict[int, _Bin] = field(default_factory=dict)
    """By step // width."""
    skipped: int = 0
    """Number of values that were nan or infinite."""

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self.skipped += 1
            return
        known = self.bins.get(step // self.width)
        if known is not None:  # nearly every value: a log of a million lines has 300 bins
            known.add_value(step, value)
            return
        self.bins[step // self.width] = _Bin(count=1, total=value, low=value, high=value, last_step=step)
        while len(self.bins) > MAX_BINS:
            self._widen()

    def _widen(self) -> None:
        self.width *= 2
        narrow, self.bins = self.bins, {}
        for key in sorted(narrow):
            merged = self.bins.setdefault(key // 2, narrow[key])
            if merged is not narrow[key]:
                merged.add(narrow[key])

    def points(self, count: Callable[[int], float] = int) -> tuple[Point, ...]:
        """Return the bins in the order of their steps; `count` turns steps into those of the points."""
        bins = [self.bins[key] for key in sorted(self.bins)]
        return tuple(
            Point(step=count(bin_.last_step), mean=bin_.total / bin_.count, low=bin_.low, high=bin_.high)
            for bin_ in bins
        )
