"""The pace of a run: the usual time of its steps, and estimates for lines that do not log a time. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import median

from opsctl.state.journal import TrainHistory
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_summary import LogPart, LogStep

MAX_COMPLETE_INTERVALS = 10
"""Lines are missing where two lines are further apart than this many of the log's intervals."""

Usual = dict[tuple[int, int], float]
"""The median time of a step, in seconds, by samples in a step and number of nodes."""
SAME_MOMENT_S = 10.0
"""A finalization and a start no further apart were written by the same guard."""


def usual_step_s(parts: Iterable[tuple[LogPart, int]]) -> Usual:
    """Return the median time of a step; the first steps of an attempt and the steps after a save take long.

    Every part comes with its number of nodes.
    """
    samples: dict[tuple[int, int], list[float]] = {}
    for part, nodes in parts:
        for step_s, batch in zip(part.step_seconds, part.batches, strict=True):
            if 0 < step_s < math.inf:
                samples.setdefault((int(batch), nodes), []).append(step_s)
    return {key: median(values) for key, values in samples.items()}


def log_interval(parts: Iterable[LogPart]) -> int:
    """Return the usual number of steps from one line to the next."""
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(int(after - before) for before, after in pairwise(part.steps) if after > before)
    return max(counts, key=lambda interval: counts[interval]) if counts else 1


def logged_s(log_part: LogPart, usual: Callable[[LogStep], float], every: int) -> float:
    """Return the seconds of all steps and saves in an attempt's log."""
    steps_s = (seconds for _, seconds in time_lines(log_part, usual, every))
    return sum(steps_s) + sum(filter(math.isfinite, (*log_part.stalls_s, log_part.stall_s)))


def time_lines(log_part: LogPart, usual: Callable[[LogStep], float], every: int) -> Iterator[tuple[LogStep, float]]:
    """Yield every line with the seconds that its steps took."""
    before: int | None = None
    for line in log_part:
        yield line, line_s(line, count_steps(line.step, before, every), usual(line), every)
        before = line.step


def find_missing_steps(parts: Iterable[LogPart], every: int) -> int:
    """Return the number of steps that were done but have no line. Later steps of the same attempt prove them."""
    missing = 0.0
    for part in parts:
        gaps = (after - before for before, after in pairwise(part.steps))
        missing += sum(gap - every for gap in gaps if gap > MAX_COMPLETE_INTERVALS * every)
    return int(missing)


def count_steps(step: int, before: int | None, every: int) -> int:
    """Return the number of steps in a line. The first line of an attempt may cover fewer than the others."""
    if before is not None and step > before:
        return step - before
    return min(max(step, 1), (step - 1) % every + 1)


def line_s(line: LogStep, count: int, usual_s: float, every: int) -> float:
    """Return the seconds of the `count` steps of a line.

    Steps without a logged time are assumed to have taken the usual time. These are the steps of missing lines, and all
    steps of a line without a time.
    """
    if not math.isfinite(line.step_s):
        total_s = usual_s * count
    elif count > MAX_COMPLETE_INTERVALS * every and usual_s >= 0:
        total_s = line.step_s * every + usual_s * (count - every)
    else:
        total_s = line.step_s * count
    return total_s if total_s >= 0 else 0.0


def median_step_s(recent: Iterable[Iteration]) -> float | None:
    """Return the median time of a step, None if unknown. A mean would include the long steps after saves."""
    return median_of_known(iteration.step_s for iteration in recent)


def median_of_known(figures: Iterable[float | None]) -> float | None:
    """Return the median of the positive, finite figures, None without one."""
    known = [figure for figure in figures if figure is not None and math.isfinite(figure) and figure > 0]
    return median(known) if known else None


def measure_waits(history: TrainHistory) -> list[float]:
    """Return the seconds from the end of every attempt to the start of the next task, holds included.

    The end of an attempt that was finalized only by the next attempt is unknown, and so is the wait after it.
    """
    attempts = sorted(history.started.items(), key=lambda attempt: attempt[1])
    waits = []
    for (attempt, _), (following, start) in pairwise(attempts):
        is_in_place = attempt.rpartition(".")[0] == following.rpartition(".")[0]
        if (ended := history.finalized.get(attempt)) and not is_in_place:
            waits.append((start - ended.when).total_seconds())
    return [wait for wait in waits if wait > SAME_MOMENT_S]
