"""Simulate the same trains with one figure changed, and rank the changes by their gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles, stdev

from opsctl.base.errors import InputError
from opsctl.calc.save_interval import with_restart
from opsctl.calc.simulation import CAUSES, SimulatedRun, SimulationSetup, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Effective time over all seeds."""

    seeds: int
    mean: float
    low: float
    """10th percentile of the trains."""
    high: float
    """90th percentile of the trains."""
    spread: float
    """Standard deviation from train to train."""
    without_queue: float
    failures: float
    attempts: float
    removed: float
    lost: dict[str, float]
    """Share of the wall-clock by cause."""

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / math.sqrt(self.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One change and its gain in effective time. `error` is the standard error of the gain, train by train."""

    change: str
    gain: float
    error: float


def run(setup: SimulationSetup, seeds: int, *, first: int = 0) -> list[SimulatedRun]:
    if seeds < 1:
        raise InputError(f"seeds is {seeds}, needs to be above 0")
    return [simulate(setup, seed=seed) for seed in range(first, first + seeds)]


def summary(outcomes: Sequence[SimulatedRun]) -> Summary:
    shares = [outcome.share for outcome in outcomes]
    tenths = quantiles(shares, n=10, method="inclusive") if len(shares) > 1 else shares * 9
    return Summary(
        seeds=len(shares),
        mean=fmean(shares),
        low=tenths[0],
        high=tenths[-1],
        spread=stdev(shares) if len(shares) > 1 else 0.0,
        without_queue=fmean(outcome.share_without_queue for outcome in outcomes),
        failures=fmean(outcome.failures for outcome in outcomes),
        attempts=fmean(outcome.attempts for outcome in outcomes),
        removed=fmean(outcome.removed for outcome in outcomes),
        lost={cause: fmean(outcome.lost[cause] / outcome.wall_h for outcome in outcomes) for cause in CAUSES},
    )


def rank_knobs(setup: SimulationSetup, outcomes: Sequence[SimulatedRun]) -> list[Knob]:
    """Try every change on the same seeds as `outcomes`; return the best change first."""
    knobs = []
    for change, changed in changes(setup):
        runs = run(changed, len(outcomes))
        gains = [after.share - before.share for after, before in zip(runs, outcomes, strict=True)]
        error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        knobs.append(Knob(change=change, gain=fmean(gains), error=error))
    return sorted(knobs, key=lambda knob: -knob.gain)


def changes(setup: SimulationSetup) -> Iterator[tuple[str, SimulationSetup]]:
    """Yield changes: every cost halved, every help doubled, and the chain guard switched."""
    guard = "without" if setup.guard else "with"
    yield f"{guard} the chain guard", replace(setup, guard=not setup.guard)
    for cost, halve in _HALVED.items():
        changed = halve(setup)
        if changed != setup:
            yield f"half the {cost}", changed
    if setup.lemons:
        yield "no lemons", replace(setup, lemons=0)
    if setup.per_1000_node_days and setup.broken:
        yield "twice the spares", replace(setup, spares=2 * max(setup.spares, 1))
    if math.isfinite(setup.task_h):
        yield "tasks twice as long", replace(setup, task_h=2 * setup.task_h)
    if setup.save_h and math.isfinite(setup.mtbf_h):
        best = with_restart(setup.save_h, setup.mtbf_h, setup.start_up_h)
        yield f"a checkpoint every {best * 60:.0f} min", replace(setup, interval_h=best)


_HALVED: dict[str, Callable[[SimulationSetup], SimulationSetup]] = {
    "failures": lambda setup: replace(setup, per_1000_node_days=setup.per_1000_node_days / 2),
    "time until a hang is noticed": lambda setup: replace(setup, notice_h=setup.notice_h / 2),
    "start-up time": lambda setup: replace(setup, start_up_h=setup.start_up_h / 2),
    "time of a save": lambda setup: replace(setup, save_h=setup.save_h / 2),
    "wait in the queue": lambda setup: replace(setup, queue_h=setup.queue_h / 2),
    "repair time": lambda setup: replace(setup, repair_days=setup.repair_days / 2),
}
