"""The pace of a run and its waits between attempts, from which the time left is estimated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from opsctl.state.journal import TrainHistory
from opsctl.telemetry.progress.iteration_lines import Iteration

SAME_MOMENT_S = 10.0
"""A finalization and a start no further apart were written by the same guard."""


def median_step_s(recent: Iterable[Iteration]) -> float | None:
    """Return the median time of a step, None if unknown. A mean would include the long steps after saves."""
    return median_of_known(iteration.step_s for iteration in recent)


def median_of_known(figures: Iterable[float | None]) -> float | None:
    """Return the median of the positive, finite figures, None without one."""
    known = [figure for figure in figures if figure is not None and math.isfinite(figure) and figure > 0]
    return median(known) if known else None


def measure_waits(history: TrainHistory) -> list[float]:
    """Return the seconds from the end of every attempt to the start of the next, holds included.

    The end of an attempt that was finalized only by the next attempt is unknown, and so is the wait after it.
    """
    attempts = sorted(history.started.items(), key=lambda attempt: attempt[1])
    waits = []
    for (attempt, _), (_, start) in pairwise(attempts):
        if ended := history.finalized.get(attempt):
            waits.append((start - ended.when).total_seconds())
    return [wait for wait in waits if wait > SAME_MOMENT_S]
