"""Kinds of clusters and uncertain inputs of the simulation. `pytest tests/unit/calc/test_sensitivity.py`"""

from statistics import stdev

import pytest

from opsctl.calc.sensitivity import (
    CLUSTER_KINDS,
    draw_setup,
    rank_inputs,
    run,
    run_uncertain,
    summary,
    widest_ranges,
)
from opsctl.calc.simulation import SimulationSetup

CLOUD = CLUSTER_KINDS["young-cloud"]
OPT = SimulationSetup(nodes=124, days=60, guard=False, spares=13)


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_ranges_of_a_kind_are_in_order(kind: str) -> None:
    for least, likely, most in CLUSTER_KINDS[kind].ranges.values():
        assert least <= likely <= most


def test_kinds_know_the_same_inputs() -> None:
    assert len({tuple(kind.ranges) for kind in CLUSTER_KINDS.values()}) == 1


def test_drawn_input_lies_in_its_range() -> None:
    least, _, most = CLOUD.ranges["notice_h"]
    drawn = [draw_setup(OPT, CLOUD.ranges, seed=seed).notice_h for seed in range(50)]
    assert least <= min(drawn) < max(drawn) <= most


def test_draw_is_repeated_by_its_seed() -> None:
    assert draw_setup(OPT, CLOUD.ranges, seed=3) == draw_setup(OPT, CLOUD.ranges, seed=3)


def test_range_of_a_young_cloud_holds_opt() -> None:
    """OPT-175B: 33 days of work at the usual speed took two months."""
    result = summary(run_uncertain(OPT, CLOUD.ranges, 100))
    assert result.low < 0.55 < result.high


def test_uncertain_inputs_widen_the_spread() -> None:
    uncertain = [outcome.share for outcome in run_uncertain(OPT, CLOUD.ranges, 40)]
    certain = [outcome.share for outcome in run(draw_setup(OPT, CLOUD.ranges, seed=1), 40)]
    assert stdev(uncertain) > 2 * stdev(certain)


def test_input_that_matters_most_is_first() -> None:
    ranges = {"per_1000_node_days": [1.0, 10.0, 40.0], "save_h": [0.001, 0.001, 0.0011]}
    influences = rank_inputs(OPT, ranges, seeds=10)
    assert [influence.name for influence in influences] == ["per_1000_node_days", "save_h"]
    assert influences[0].at_least > influences[0].at_most


def test_widest_range_spans_all_kinds() -> None:
    assert (widest_ranges()["per_1000_node_days"][0], widest_ranges()["per_1000_node_days"][2]) == (2.3, 28.0)
