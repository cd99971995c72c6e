"""How fast checkpoints fill a filesystem."""

from __future__ import annotations

import math

from opsctl.calc.argument_checks import not_positive, not_share, refuse


def per_day(size: float, interval_s: float) -> float:
    """Return the volume written in a day without deletions, in the unit of `size`."""
    refuse("storage", not_positive(size=size, interval_s=interval_s))
    return size * 86400 / interval_s


def days_until_full(*, free: float, size: float, interval_s: float, reliable: float = 1.0) -> float:
    """Return the days until a quota is full. `reliable` is the usable share of the quota."""
    refuse("storage", [*not_positive(free=free), *not_share(reliable=reliable)])
    return free * reliable / per_day(size, interval_s)


def fits(*, free: float, size: float, reliable: float = 1.0) -> int:
    """Return how many whole checkpoints fit. One of them is always being written, so one less can be stored."""
    refuse("storage", [*not_positive(free=free, size=size), *not_share(reliable=reliable)])
    return math.floor(free * reliable / size)
