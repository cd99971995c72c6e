"""The interval of saves, the cost of saves and of failures, and how fast checkpoints fill a file system.

Times in seconds, unless a name ends in `_h`.
"""

import math
from dataclasses import dataclass

from opsctl.calc.argument_checks import negative, not_positive, refuse

BYTES_PER_PARAMETER = 14
"""bf16 weights and fp32 master weights with two moments. BLOOM's 176.2e9 x 14 are 2.24 TiB, published as 2.3 TB."""


def size_bytes(parameters: int) -> int:
    """Return the size of a full checkpoint, which has no gradients."""
    return parameters * BYTES_PER_PARAMETER


def young(save_s: float, mtbf_s: float) -> float:
    """Return √(2CM) (Young 1974)."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly(save_s: float, mtbf_s: float) -> float:
    """Return √(2CM) − C, the first order (Daly 2006), or M where a save takes half of M or longer."""
    return math.sqrt(2 * save_s * mtbf_s) - save_s if save_s < mtbf_s / 2 else mtbf_s


def with_restart(save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Return C + √(2(M + R)C + C²), the best interval if a restart takes R (NVIDIA, arXiv 2410.18124)."""
    return save_s + math.sqrt(2 * (mtbf_s + restart_s) * save_s + save_s**2)


def in_steps(interval_s: float, step_s: float) -> int:
    """Return the interval in whole steps, at least one."""
    return max(1, round(interval_s / step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a save interval, as shares of the time and in seconds."""

    interval_s: float
    saving: float
    """Share of the time spent on saves."""
    lost_per_failure_s: float
    """Work done twice, the restart, and the time until the failure is detected."""
    failing: float
    """Share of the time lost to failures."""

    @property
    def total(self) -> float:
        return self.saving + self.failing


def cost(*, interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0, detect_s: float = 0.0) -> Cost:
    """Return the cost: C/T for saves (book, "Frequent checkpoint saving"), T/2 + R + detection for a failure."""
    refuse(
        "checkpoints",
        [
            *not_positive(interval_s=interval_s, mtbf_s=mtbf_s),
            *negative(save_s=save_s, restart_s=restart_s, detect_s=detect_s),
        ],
    )
    lost = interval_s / 2 + restart_s + detect_s
    return Cost(
        interval_s=interval_s, saving=save_s / interval_s, lost_per_failure_s=lost, failing=min(1.0, lost / mtbf_s)
    )


def renewal(
    *, mtbf_h: float, interval_h: float, save_h: float = 0.0, restart_h: float = 0.0, down_h: float = 0.0
) -> float:
    """Return the effective share of the wall-clock time, exact for a constant failure rate.

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


def per_day(size: float, interval_s: float) -> float:
    """Return the volume written in a day without deletions, in the unit of `size`."""
    return size * 86400 / interval_s
