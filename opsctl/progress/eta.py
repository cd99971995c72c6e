"""How long a run still takes, if it goes on as it did lately."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from opsctl.progress.logline import Iteration


def seconds_left(step: int, last: int | None, step_s: float | None) -> float | None:
    """Seconds to the last step, or None if that or the time of a step is not known. Pauses are not in it."""
    if not last or step_s is None or not math.isfinite(step_s) or step_s <= 0:
        return None
    return max(0, last - step) * step_s


def median_step_s(recent: Iterable[Iteration]) -> float | None:
    """The usual time of a step: a median, for the step after a save takes many times as long. None if unknown."""
    known = [
        each.step_s for each in recent if each.step_s is not None and math.isfinite(each.step_s) and each.step_s > 0
    ]
    return median(known) if known else None
