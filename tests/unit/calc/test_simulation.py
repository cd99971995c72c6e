"""The simulation against closed forms and published figures. `pytest tests/unit/calc/test_simulation.py`

The long simulations are in tests/endurance/test_simulate.py.
"""

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsctl.base.errors import InputError
from opsctl.calc.save_interval import renewal
from opsctl.calc.sensitivity import (
    CLUSTER_KINDS,
    Summary,
    changes,
    draw_setup,
    rank_inputs,
    rank_knobs,
    run,
    run_uncertain,
    summary,
    widest_ranges,
)
from opsctl.calc.simulation import CAUSES, SimulationSetup, simulate
from opsctl.calc.spares import plan_task_spares
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.cases import read_cases

PLAIN = SimulationSetup(
    nodes=2048, days=90, per_1000_node_days=6.5, interval_h=1, save_h=0, start_up_h=5 / 60, hangs=0, broken=0
)
ROUGH = replace(
    PLAIN,
    interval_h=0.5,
    save_h=0.02,
    queue_h=0.2,
    task_h=20,
    hangs=0.2,
    broken=0.05,
    flaky_nodes=20,
    spares=20,
    guard=False,
)


def compute_exact(setup: SimulationSetup) -> float:
    return renewal(
        mtbf_h=setup.mtbf_h,
        interval_h=setup.interval_h,
        save_h=setup.save_h,
        restart_h=setup.start_up_h,
        down_h=setup.hangs * setup.notice_h + setup.queue_h,
    )


def simulate_mean(setup: SimulationSetup) -> Summary:
    """Simulate until the standard error is small compared with the tolerances of the tests."""
    outcomes = run(setup, 10)
    result = summary(outcomes)
    while result.spread > 0.002 * math.sqrt(result.seeds) and len(outcomes) < 200:
        outcomes += run(setup, 10, first=len(outcomes))
        result = summary(outcomes)
    assert result.spread <= 0.002 * math.sqrt(result.seeds)
    return result


@pytest.mark.parametrize(*read_cases(__file__, "exact_form_is_matched_within_a_point"))
def test_exact_form_is_matched_within_a_point(changed: dict[str, Any]) -> None:
    setup = replace(PLAIN, **changed)
    assert simulate_mean(setup).mean == pytest.approx(compute_exact(setup), abs=0.01)


@pytest.mark.parametrize(("interval_h", "published"), [(1, 0.70), (1 / 12, 0.93)])
def test_meta_cases_of_16384_gpus_are_matched_within_3_points(interval_h: float, published: float) -> None:
    assert simulate_mean(replace(PLAIN, interval_h=interval_h)).mean == pytest.approx(published, abs=0.03)


def test_4096_gpus_of_meta_are_over_90_percent_effective() -> None:
    assert simulate_mean(replace(PLAIN, nodes=512)).mean > 0.9


def test_llama_3_has_419_failures_and_over_90_percent() -> None:
    rate = 419 / (2048 * 54) * 1000
    llama = replace(PLAIN, days=54, per_1000_node_days=rate, interval_h=1 / 6, save_h=10 / 3600, start_up_h=1 / 12)
    summary = simulate_mean(llama)
    running = 419 * (1 - summary.lost["hang until noticed"])
    assert summary.failures == pytest.approx(running, abs=3 * math.sqrt(419 / summary.seeds))
    assert summary.mean > 0.9


def test_byterobust_reaches_97_percent_with_short_stops() -> None:
    # 9,600 GPUs, a failure per 2.78 h at 16k GPUs, detection in 30 s, warm standby, checkpoints every few steps
    rate = 1000 * 24 / (2.78 * 2048)
    summary = simulate_mean(
        replace(
            PLAIN,
            nodes=1200,
            per_1000_node_days=rate,
            interval_h=5 / 60,
            start_up_h=5 / 60,
            hangs=0.13,
            notice_h=30 / 3600,
        )
    )
    assert summary.mean == pytest.approx(0.97, abs=0.01)


def test_train_without_failures_loses_start_up_and_saves() -> None:
    simulated = simulate(replace(PLAIN, per_1000_node_days=0, save_h=0.1, interval_h=0.9, days=100), seed=0)
    assert simulated.failures == 0
    assert simulated.share == pytest.approx(0.9, abs=0.001)


def test_time_limit_costs_start_up_save_and_wait() -> None:
    calm = replace(PLAIN, per_1000_node_days=0, task_h=20, save_h=0.5, interval_h=100, start_up_h=1, queue_h=0)
    simulated = simulate(replace(calm, days=100), seed=0)
    assert simulated.attempts == 120
    assert simulated.share == pytest.approx(18.5 / 20, abs=0.001)


def test_seed_determines_the_train() -> None:
    assert simulate(ROUGH, seed=3) == simulate(ROUGH, seed=3)
    assert simulate(ROUGH, seed=3) != simulate(ROUGH, seed=4)


def test_broken_node_without_the_guard_waits_for_a_person() -> None:
    shaky = replace(PLAIN, nodes=48, broken=1, spares=100, person_h=8)
    without, guarded = (summary(run(replace(shaky, guard=guard), 30)) for guard in (False, True))
    failures = without.failures
    assert guarded.mean - without.mean == pytest.approx(failures * 8 / (90 * 24), rel=0.15)
    assert without.attempts > guarded.attempts


def test_range_excludes_a_tenth_on_either_side() -> None:
    outcome = run(SimulationSetup(nodes=8, days=1), 1)[0]
    result = summary([replace(outcome, effective_h=share * outcome.wall_h / 100) for share in range(101)])
    assert (result.low, result.mean, result.high) == (pytest.approx(0.1), pytest.approx(0.5), pytest.approx(0.9))


def test_guard_removes_flaky_nodes() -> None:
    setup = replace(PLAIN, nodes=200, flaky_nodes=5, flaky_factor=100, spares=20)
    guarded, without = (summary(run(replace(setup, guard=guard), 10)) for guard in (True, False))
    assert guarded.removed == 5
    assert without.removed == 0
    assert guarded.failures < without.failures / 3


def test_train_is_held_without_spares() -> None:
    setup = replace(PLAIN, nodes=200, broken=1, repair_days=3)
    none, enough = (summary(run(replace(setup, spares=count), 10)) for count in (0, 40))
    assert none.lost["held"] > 0.5
    assert enough.lost["held"] == 0


def test_most_helpful_knob_is_ranked_first() -> None:
    setup = replace(PLAIN, nodes=48, days=30, queue_h=10, task_h=40, guard=False)
    outcomes = run(setup, 10)
    result = rank_knobs(setup, outcomes)
    assert result[0].change == "half the wait in the queue"
    assert [knob.gain for knob in result] == sorted((knob.gain for knob in result), reverse=True)
    assert result[0].gain > 10 * result[0].error


def test_spare_nodes_that_pay_are_proposed_with_their_cost_and_gain() -> None:
    """64 nodes lose 0.35 nodes in 20 h (6.5 failures per 1000 node-days). The second spare is used in 5 % of tasks."""
    plan = plan_task_spares(64, 6.5, task_h=20, queue_h=8)
    assert (plan.count, round(plan.lost, 2), round(plan.replaced, 2), round(plan.cost, 3)) == (2, 0.35, 0.34, 0.03)
    assert plan_task_spares(64, 6.5, task_h=20, queue_h=0.5).count == 0
    assert plan_task_spares(1, 6.5, task_h=20, queue_h=8).count == 0, "the death of the first node costs the task"
    setup = replace(PLAIN, nodes=64, queue_h=8, task_h=20, broken=1, per_1000_node_days=65, spares=64)
    lost = [summary(run(replace(setup, spare_nodes=count), 20)).lost["queue"] for count in (0, 8)]
    assert lost[1] < 0.7 * lost[0]
    assert any("in each task" in change for change, _ in changes(setup))


def test_change_is_compared_on_the_same_failures() -> None:
    setup = replace(PLAIN, nodes=512, days=20, notice_h=1, hangs=0.5)
    before, after = (run(replace(setup, notice_h=hours), 20) for hours in (1.0, 0.5))
    gains = [a.share - b.share for b, a in zip(before, after, strict=True)]
    assert fmean(gains) > 0
    assert stdev(gains) < summary(before).spread


SETUPS = st.builds(
    SimulationSetup,
    nodes=st.integers(20, 3000),
    days=st.floats(0.1, 40),
    per_1000_node_days=st.floats(0, 50),
    interval_h=st.floats(0.02, 30),
    save_h=st.floats(0, 0.5),
    start_up_h=st.floats(0, 1),
    queue_h=st.one_of(st.just(0.0), st.floats(0.01, 30)),
    task_h=st.one_of(st.just(math.inf), st.floats(2, 100)),
    hangs=st.floats(0, 1),
    notice_h=st.floats(0, 2),
    broken=st.floats(0, 1),
    flaky_nodes=st.integers(0, 20),
    spares=st.integers(0, 50),
    repair_days=st.floats(0, 10),
    person_h=st.floats(0, 48),
    guard=st.booleans(),
)


@example(setup=replace(ROUGH, broken=1, start_up_h=2.3e-313, queue_h=0.0, person_h=1.0), seed=0)
@given(setup=SETUPS, seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_effective_and_lost_hours_add_up(setup: SimulationSetup, seed: int) -> None:
    simulated = simulate(setup, seed=seed)
    assert simulated.effective_h + sum(simulated.lost.values()) == pytest.approx(simulated.wall_h, rel=1e-9, abs=1e-9)
    assert 0 <= simulated.share <= 1
    assert all(hours >= 0 for hours in simulated.lost.values())


def test_causes_are_those_of_reports_and_drills() -> None:
    assert set(CAUSES) <= set(Bucket)


def test_mean_lies_within_the_range() -> None:
    outcomes = run(ROUGH, 12)
    result = summary(outcomes)
    assert result.mean == pytest.approx(fmean(outcome.share for outcome in outcomes))
    assert result.low <= result.mean <= result.high
    assert summary(outcomes[:1]).spread == 0


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        SimulationSetup(nodes=10, flaky_nodes=20, hangs=2, task_h=0.05)
    assert caught.value.message == (
        "simulation: 3 problems\n  hangs is 2, needs to be between 0 and 1\n  20 flaky nodes among 10 nodes\n"
        "  a task of 0.05 h ends before a start-up and a save do"
    )


def test_endless_failures_are_refused() -> None:
    with pytest.raises(InputError, match=r"a failure every 0\.089 s: no train gets anywhere"):
        SimulationSetup(nodes=150_000, per_1000_node_days=6500)


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
