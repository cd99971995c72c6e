"""How fast checkpoints fill a filesystem."""

from __future__ import annotations

import math

from opsctl.calc.argument_checks import not_positive, not_share, refuse


def per_day(size: float, interval_s: float) -> float:
    """Written in a day if nothing is deleted, in the unit of `size`."""
    refuse("storage", not_positive(size=size, interval_s=interval_s))
    return size * 86400 / interval_s


def days_until_full(*, free: float, size: float, interval_s: float, reliable: float = 1.0) -> float:
    """Days until a quota is full; `reliable` is the share of the quota that can be counted on."""
    refuse("storage", [*not_positive(free=free), *not_share(reliable=reliable)])
    return free * reliable / per_day(size, interval_s)


def fits(*, free: float, size: float, reliable: float = 1.0) -> int:
    """Whole checkpoints that fit beside each other. One is always being written: keep one less."""
    refuse("storage", [*not_positive(free=free, size=size), *not_share(reliable=reliable)])
    return math.floor(free * reliable / size)
