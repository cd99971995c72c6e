"""Uncertain inputs of the simulation: kinds of clusters, inputs drawn from ranges, and how much each input matters."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from random import Random
from statistics import fmean
from typing import Any

from opsctl.calc.simulation import SimulatedRun, SimulationSetup, simulate

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


def _read_kinds() -> dict[str, ClusterKind]:
    tables = tomllib.loads(files("opsctl.calc").joinpath("cluster_kinds.toml").read_text())
    return {name: ClusterKind(**table) for name, table in tables.items()}


CLUSTER_KINDS: dict[str, ClusterKind] = _read_kinds()


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
        ends = [fmean(_shares(replace(setup, **change), seeds)) for change in changes]
        influences.append(Influence(name=name, least=least, most=most, at_least=ends[0], at_most=ends[1]))
    return sorted(influences, key=lambda influence: -influence.swing)


def _shares(setup: SimulationSetup, seeds: int) -> list[float]:
    return [simulate(setup, seed=seed).share for seed in range(seeds)]
