"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""Signs for terminals whose encoding has no block characters."""
BROKEN = "x"
"""The sign for nan and infinite values."""


def sparkline(values: Sequence[float], width: int, *, ramp: str = BLOCKS) -> str:
    """Return `values` as at most `width` signs, from the lowest value to the highest; empty for fewer than two."""
    if len(values) < 2:
        return ""
    columns = [_worst(share) for share in _shares(values, min(width, len(values)))]
    known = [column for column in columns if math.isfinite(column)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_sign(column, low, high, ramp) for column in columns)


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """Split `values` into `count` runs of nearly the same length."""
    ends = [round(n * len(values) / count) for n in range(count + 1)]
    return [values[begin:end] for begin, end in pairwise(ends)]


def _worst(values: Sequence[float]) -> float:
    """Return a nan or infinite value, else the highest value, so that no spike is lost."""
    return max(values, key=lambda value: (not math.isfinite(value), value))


def _sign(value: float, low: float, high: float, ramp: str) -> str:
    if not math.isfinite(value):
        return BROKEN
    share = (value - low) / (high - low) if high > low else 0.5
    return ramp[min(len(ramp) - 1, int(share * len(ramp)))]
