"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""For terminals whose encoding has no blocks."""
BROKEN = "x"
"""Where a value is no number."""


def sparkline(values: Sequence[float], width: int, *, ramp: str = BLOCKS) -> str:
    """`values` in at most `width` signs, from the lowest of them to the highest; empty for fewer than two."""
    if len(values) < 2:
        return ""
    columns = [_worst(share) for share in _shares(values, min(width, len(values)))]
    known = [column for column in columns if math.isfinite(column)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_sign(column, low, high, ramp) for column in columns)


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """`values` cut into `count` runs of nearly the same length."""
    ends = [round(n * len(values) / count) for n in range(count + 1)]
    return [values[begin:end] for begin, end in pairwise(ends)]


def _worst(values: Sequence[float]) -> float:
    """The highest, so that no spike is lost; what is no number is worse still."""
    return max(values, key=lambda value: (not math.isfinite(value), value))


def _sign(value: float, low: float, high: float, ramp: str) -> str:
    if not math.isfinite(value):
        return BROKEN
    share = (value - low) / (high - low) if high > low else 0.5
    return ramp[min(len(ramp) - 1, int(share * len(ramp)))]
