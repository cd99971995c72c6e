"""Effective training time in closed form, as a share of the wall-clock time. Times in hours."""

from __future__ import annotations

import math

from opsctl.calc.argument_checks import negative, not_positive, refuse


def renewal(
    *, mtbf_h: float, interval_h: float, save_h: float = 0.0, restart_h: float = 0.0, down_h: float = 0.0
) -> float:
    """Return the effective share, exact for a constant failure rate.

    T / (e^λR·(e^λ(T + C) − 1)·(1/λ + D)) (after Daly 2006, eq. 20).
    Restarts may fail too. `down_h` is time without failures: the queue, and a hang until its detection.
    """
    refuse(
        "effective time",
        [
            *not_positive(mtbf_h=mtbf_h, interval_h=interval_h),
            *negative(save_h=save_h, restart_h=restart_h, down_h=down_h),
        ],
    )
    growth = (interval_h + save_h) / mtbf_h
    if growth + restart_h / mtbf_h > 700:
        return 0.0
    return interval_h / (math.exp(restart_h / mtbf_h) * math.expm1(growth) * (mtbf_h + down_h))
