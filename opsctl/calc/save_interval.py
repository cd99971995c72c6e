"""The interval of saves, and the cost of saves and of failures. Times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.calc.argument_checks import negative, not_positive, refuse

BYTES_PER_PARAMETER = 14
"""bf16 weights and fp32 master weights with two moments. BLOOM's 176.2e9 x 14 are 2.24 TiB, published as 2.3 TB."""


def size_bytes(parameters: int, bytes_per_parameter: float = BYTES_PER_PARAMETER) -> float:
    """Return the size of a full checkpoint, which has no gradients."""
    return parameters * bytes_per_parameter


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
