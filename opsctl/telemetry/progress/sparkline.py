"""A curve in one line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"
"""Signs for terminals whose encoding has no block characters."""
BEYOND = {BLOCKS: "↓↑", ASCII: "v^"}
"""The marks for values below and above the scale."""
MIN_COLUMNS_FOR_HALF = 8
"""Half of a shorter curve is too little for a scale: all its values define the scale."""
BROKEN = "x"
"""The sign for nan and infinite values."""


def sparkline(values: Sequence[float], width: int, *, ramp: str = BLOCKS) -> str:
    """Return `values` as at most `width` signs; empty for fewer than two.

    The scale of a long curve is that of its last half: where a loss has fallen from 11 to 2.5, the fall from 2.6 to 2.5
    still shows.
    Earlier values beyond the scale have marks of their own, so that no sign has two meanings.
    """
    if len(values) < 2:
        return ""
    columns = [_worst(share) for share in _shares(values, min(width, len(values)))]
    half = columns[len(columns) // 2 :] if len(columns) >= MIN_COLUMNS_FOR_HALF else columns
    known = [column for column in half if math.isfinite(column)] or list(filter(math.isfinite, columns))
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
    if not low <= value <= high:
        return BEYOND[ramp][value > high]
    share = (value - low) / (high - low) if high > low else 0.5
    return ramp[min(len(ramp) - 1, int(share * len(ramp)))]
