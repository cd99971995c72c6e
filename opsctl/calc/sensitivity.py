"""What the effective time depends on: changes ranked by their gain, uncertain inputs by their influence.

Inputs that nobody knows are drawn from the published ranges of kinds of clusters.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, quantiles, stdev
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.calc.save_interval import with_restart
from opsctl.calc.simulation import CAUSES, SimulatedRun, SimulationSetup, simulate
from opsctl.calc.spares import plan_task_spares


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One change and its gain in effective time. `error` is the standard error of the gain, train by train."""

    change: str
    gain: float
    error: float


def run(setup: SimulationSetup, seeds: int, *, first: int = 0) -> list[SimulatedRun]:
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
    for cost, name in _HALVED.items():
        changed = replace(setup, **{name: getattr(setup, name) / 2})
        if changed != setup:
            yield f"half the {cost}", changed
    if setup.flaky_nodes:
        yield "no flaky nodes", replace(setup, flaky_nodes=0)
    if setup.per_1000_node_days and setup.broken:
        yield "twice the spares", replace(setup, spares=2 * max(setup.spares, 1))
    yield from _add_task_spares(setup)
    if math.isfinite(setup.task_h):
        yield "tasks twice as long", replace(setup, task_h=2 * setup.task_h)
    if setup.save_h and math.isfinite(setup.mtbf_h):
        best = with_restart(setup.save_h, setup.mtbf_h, setup.start_up_h)
        yield f"a checkpoint every {best * 60:.0f} min", replace(setup, interval_h=best)


def _add_task_spares(setup: SimulationSetup) -> Iterator[tuple[str, SimulationSetup]]:
    """Yield the number of spare nodes in a task that pays, if the failures of nodes cost time in the queue."""
    task_h = min(setup.task_h, 24 * setup.days)
    rate = setup.per_1000_node_days * setup.broken
    plan = plan_task_spares(setup.nodes, rate, task_h=task_h, queue_h=setup.queue_h)
    if setup.guard and plan.count > setup.spare_nodes:
        count = f"{plan.count} spare node{'s' * (plan.count > 1)}"
        yield f"{count} in each task, {plan.cost:.1%} of the node hours", replace(setup, spare_nodes=plan.count)


_HALVED: dict[str, str] = read_package_table("calc/halved_costs.toml")


Ranges = Mapping[str, Sequence[float]]
"""By input: least, likely and most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKind:
    """The usual inputs of one kind of cluster."""

    guard: bool
    spare_share: float
    """Spare nodes over nodes that train."""
    ranges: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """The effective time with one input at the ends of its range, all others unchanged."""

    name: str
    least: float
    most: float
    at_least: float
    at_most: float

    @property
    def swing(self) -> float:
        return abs(self.at_most - self.at_least)


CLUSTER_KINDS = {name: ClusterKind(**table) for name, table in read_package_table("calc/cluster_kinds.toml").items()}


def widest_ranges() -> dict[str, list[float]]:
    """Return for every input the least and the most of all kinds, and the likely value of the first."""
    first, *others = [kind.ranges for kind in CLUSTER_KINDS.values()]
    return {
        name: [min(r[name][0] for r in (first, *others)), likely, max(r[name][2] for r in (first, *others))]
        for name, (_, likely, _) in first.items()
    }


def draw_setup(setup: SimulationSetup, ranges: Ranges, *, seed: int) -> SimulationSetup:
    """Return the setup with every input of `ranges` drawn from a triangular distribution, of logarithms above 0."""
    random = Random(f"{seed} inputs")  # noqa: S311 (a simulation, no secret)  # nosec B311
    drawn: dict[str, Any] = {}
    for name, ends in ranges.items():
        least, likely, most = map(math.log, ends) if min(ends) > 0 else ends
        value = random.triangular(least, most, likely)
        drawn[name] = math.exp(value) if min(ends) > 0 else value
    return replace(setup, **drawn)


def run_uncertain(setup: SimulationSetup, ranges: Ranges, seeds: int) -> list[SimulatedRun]:
    """Simulate trains whose inputs are drawn, so that the spread holds what is not known."""
    return [simulate(draw_setup(setup, ranges, seed=seed), seed=seed) for seed in range(seeds)]


def rank_inputs(setup: SimulationSetup, ranges: Ranges, *, seeds: int) -> list[Influence]:
    """Simulate with every input at both ends of its range; return the input that matters most first."""
    influences = []
    for name, (least, _, most) in ranges.items():
        changes: list[dict[str, Any]] = [{name: least}, {name: most}]
        ends = [summary(run(replace(setup, **change), seeds)).mean for change in changes]
        influences.append(Influence(name=name, least=least, most=most, at_least=ends[0], at_most=ends[1]))
    return sorted(influences, key=lambda influence: -influence.swing)
