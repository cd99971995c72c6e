"""How long a run still takes, if it goes on as it did lately."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from opsctl.state.journal import TrainHistory
from opsctl.telemetry.progress.iteration_lines import Iteration

SAME_MOMENT_S = 10.0
"""A finalization and a start that are no further apart are one guard's doing."""


def median_step_s(recent: Iterable[Iteration]) -> float | None:
    """The usual time of a step: a median, for the step after a save takes many times as long. None if unknown."""
    known = [
        iteration.step_s
        for iteration in recent
        if iteration.step_s is not None and math.isfinite(iteration.step_s) and iteration.step_s > 0
    ]
    return median(known) if known else None


def measure_waits(history: TrainHistory) -> list[float]:
    """Seconds from the end of each attempt to the start of the next. A hold counts: it happened.

    An attempt that was finalized only when the next one began tells nothing of its end, and so of no wait.
    """
    attempts = sorted(history.started.items(), key=lambda attempt: attempt[1])
    waits = []
    for (attempt, _), (_, start) in pairwise(attempts):
        if ended := history.finalized.get(attempt):
            waits.append((start - ended.when).total_seconds())
    return [wait for wait in waits if wait > SAME_MOMENT_S]
