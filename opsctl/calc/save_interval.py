"""How often to save, and what saving and not saving cost. Times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.calc.argument_checks import negative, not_positive, refuse

BYTES_PER_PARAMETER = 14
"""bf16 weights and fp32 master weights with two moments. BLOOM's 176.2e9 x 14 are 2.24 TiB; it is told as 2.3 TB."""


def size_bytes(parameters: int, bytes_per_parameter: float = BYTES_PER_PARAMETER) -> float:
    """A full checkpoint; gradients are not in it."""
    return parameters * bytes_per_parameter


def young(save_s: float, mtbf_s: float) -> float:
    """√(2CM) (Young 1974)."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly(save_s: float, mtbf_s: float) -> float:
    """√(2CM) − C, the first order (Daly 2006); the mean time between failures where it is shorter than half a save."""
    return math.sqrt(2 * save_s * mtbf_s) - save_s if save_s < mtbf_s / 2 else mtbf_s


def with_restart(save_s: float, mtbf_s: float, restart_s: float) -> float:
    """C + √(2(M + R)C + C²): most availability where a restart takes R (NVIDIA, arXiv 2410.18124)."""
    return save_s + math.sqrt(2 * (mtbf_s + restart_s) * save_s + save_s**2)


def in_steps(interval_s: float, step_s: float) -> int:
    """The interval in whole steps, at least one."""
    return max(1, round(interval_s / step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an interval costs, as shares of the time and in seconds."""

    interval_s: float
    saving: float
    """Share of the time that goes into saves."""
    lost_per_failure_s: float
    """Work done twice, restart, and the time until somebody notices."""
    failing: float
    """Share of the time that goes with failures."""

    @property
    def total(self) -> float:
        return self.saving + self.failing


def cost(*, interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0, detect_s: float = 0.0) -> Cost:
    """Saves cost C/T as the book counts it ("Frequent checkpoint saving"); a failure costs T/2 + R + detection."""
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
