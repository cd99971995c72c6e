"""The pace of a run: what its steps usually take, and so what lines take that do not say all. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

from opsctl.telemetry.progress.log_summary import LogPart, LogStep

MISSING = 10
"""Where a line comes so many of the log's intervals after the one before, lines are missing in between."""

Usual = dict[tuple[int, int], float]
"""The median time of a step, by samples in a step and number of nodes."""


def usual_step_s(parts: Iterable[tuple[LogPart, int]]) -> Usual:
    """What a step usually takes: a median, for the first steps of an attempt and those after a save take long. Each
    part
    with its number of nodes."""
    seen: dict[tuple[int, int], list[float]] = {}
    for part, nodes in parts:
        for seconds, batch in zip(part.columns[1], part.columns[4], strict=True):
            if 0 < seconds < math.inf:
                seen.setdefault((int(batch), nodes), []).append(seconds)
    return {key: median(values) for key, values in seen.items()}


def log_interval(parts: Iterable[LogPart]) -> int:
    """After how many steps the trainer usually logs them."""
    counts: Counter[int] = Counter()
    for part in parts:
        steps = part.columns[0]
        counts.update(int(after - before) for before, after in pairwise(steps) if after > before)
    return max(counts, key=lambda n: counts[n]) if counts else 1


def spoken_s(log_part: LogPart, usual: Callable[[LogStep], float], every: int) -> float:
    """Seconds that the lines and saves of an attempt tell of."""
    spoken, before = 0.0, None
    for line in log_part:
        count = count_steps(line.step, before, every)
        spoken += took_s(line, count, usual(line), every)
        before = line.step
    return spoken + sum(stall for stall in (*log_part.columns[5], log_part.stall) if math.isfinite(stall))


def find_missing_steps(parts: Iterable[LogPart], every: int) -> int:
    """Steps that were done, for later ones of the same attempt were, and of which no line tells."""
    gaps = (after - before for part in parts for before, after in pairwise(part.columns[0]))
    return int(sum(gap - every for gap in gaps if gap > MISSING * every))


def count_steps(step: int, before: int | None, every: int) -> int:
    """The steps that a line covers. The first line of an attempt may cover fewer than the others."""
    if before is not None and step > before:
        return step - before
    return min(max(step, 1), (step - 1) % every + 1)


def took_s(line: LogStep, count: int, usual: float, every: int) -> float:
    """Seconds of the `count` steps of a line. Where it does not say, or where the lines before it are missing so that
    it covers the last steps only, they are assumed to have taken the usual time."""
    known = min(count, every) if count > MISSING * every and usual >= 0 else count
    took = line.seconds * known + (usual * (count - known) if known < count else 0.0)
    took = took if math.isfinite(line.seconds) else usual * count
    return took if took >= 0 else 0.0
