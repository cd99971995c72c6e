"""Effective training time in closed form: what share of the wall-clock is first-time progress. Times in hours."""

from __future__ import annotations

import math

from opsctl.calc.argument_checks import negative, not_positive, refuse


def renewal(
    *, mtbf_h: float, interval_h: float, save_h: float = 0.0, restart_h: float = 0.0, down_h: float = 0.0
) -> float:
    """Exact for failures at a constant rate: T / (e^λR·(e^λ(T + C) − 1)·(1/λ + D)) (after Daly 2006, eq. 20).

    A failure may hit a restart too. `down_h` is where none can: the queue, and a hang until somebody notices.
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
