"""The simulation against closed forms and published figures. `pytest tests/unit/calc/test_simulation.py`

The long ones are in tests/endurance/test_simulate.py.
"""

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsctl.calc.closed_form import renewal
from opsctl.calc.sensitivity import Summary, rank_knobs, run, summary
from opsctl.calc.simulation import SimulationSetup, simulate
from opsctl.errors import InputError

PLAIN = SimulationSetup(
    nodes=2048, days=90, per_1000_node_days=6.5, interval_h=1, save_h=0, start_up_h=5 / 60, hangs=0, broken=0
)  # fmt: skip
ROUGH = replace(
    PLAIN, interval_h=0.5, save_h=0.02, queue_h=0.2, task_h=20, hangs=0.2, broken=0.05, lemons=20, spares=20,
    guard=False,
)  # fmt: skip


def exact(setup: SimulationSetup) -> float:
    return renewal(
        mtbf_h=setup.mtbf_h, interval_h=setup.interval_h, save_h=setup.save_h, restart_h=setup.start_up_h,
        down_h=setup.hangs * setup.notice_h + setup.queue_h,
    )  # fmt: skip


def mean_of(setup: SimulationSetup) -> Summary:
    """Over as many seeds as it takes for a standard error that is small beside what is asserted."""
    outcomes = run(setup, 10)
    while (found := summary(outcomes)).error > 0.002 and len(outcomes) < 200:
        outcomes += run(setup, 10, first=len(outcomes))
    assert found.error <= 0.002
    return found


@pytest.mark.parametrize(
    "setup",
    [
        PLAIN,
        replace(PLAIN, interval_h=1 / 12),
        replace(PLAIN, nodes=512),
        replace(PLAIN, save_h=0.05),
        replace(PLAIN, start_up_h=1.0),
        replace(PLAIN, hangs=0.5, notice_h=1),
        replace(PLAIN, queue_h=2),
        replace(PLAIN, interval_h=4),
        replace(PLAIN, nodes=4096, interval_h=2, save_h=0.1, start_up_h=0.5, queue_h=0.5, hangs=0.1),
    ],
    ids=lambda setup: f"{exact(setup):.3f}",
)
def test_the_exact_form_is_met_within_a_point(setup: SimulationSetup) -> None:
    assert mean_of(setup).mean == pytest.approx(exact(setup), abs=0.01)


@pytest.mark.parametrize(("interval_h", "published"), [(1, 0.70), (1 / 12, 0.93)])
def test_metas_published_cases_of_16384_gpus_are_met_within_3_points(interval_h: float, published: float) -> None:
    assert mean_of(replace(PLAIN, interval_h=interval_h)).mean == pytest.approx(published, abs=0.03)


def test_metas_4096_gpus_are_effective_for_more_than_90_percent() -> None:
    assert mean_of(replace(PLAIN, nodes=512)).mean > 0.9


def test_llama_3s_54_days_have_419_failures_and_more_than_90_percent() -> None:
    rate = 419 / (2048 * 54) * 1000
    llama = replace(PLAIN, days=54, per_1000_node_days=rate, interval_h=1 / 6, save_h=10 / 3600, start_up_h=1 / 12)
    summary = mean_of(llama)
    running = 419 * (1 - summary.lost["hang until noticed"])
    assert summary.failures == pytest.approx(running, abs=3 * math.sqrt(419 / summary.seeds))
    assert summary.mean > 0.9


def test_byterobusts_97_percent_come_with_short_stops() -> None:
    # 9,600 GPUs, a failure per 2.78 h at 16k; detected in half a minute, warm standby, checkpoints every few steps
    rate = 1000 * 24 / (2.78 * 2048)
    summary = mean_of(
        replace(PLAIN, nodes=1200, per_1000_node_days=rate, interval_h=5 / 60, start_up_h=5 / 60, hangs=0.13,
                notice_h=30 / 3600)
    )  # fmt: skip
    assert summary.mean == pytest.approx(0.97, abs=0.01)


def test_a_train_without_failures_loses_its_start_up_and_its_saves() -> None:
    simulated = simulate(replace(PLAIN, per_1000_node_days=0, save_h=0.1, interval_h=0.9, days=100), seed=0)
    assert simulated.failures == 0
    assert simulated.share == pytest.approx(0.9, abs=0.001)


def test_a_time_limit_costs_a_start_up_a_save_and_a_wait_for_each_task() -> None:
    calm = replace(PLAIN, per_1000_node_days=0, task_h=20, save_h=0.5, interval_h=100, start_up_h=1, queue_h=0)
    simulated = simulate(replace(calm, days=100), seed=0)
    assert simulated.attempts == 120
    assert simulated.share == pytest.approx(18.5 / 20, abs=0.001)


def test_the_same_seed_is_the_same_train_and_another_is_another() -> None:
    assert simulate(ROUGH, seed=3) == simulate(ROUGH, seed=3)
    assert simulate(ROUGH, seed=3) != simulate(ROUGH, seed=4)


def test_without_the_guard_a_broken_node_costs_until_a_person_comes() -> None:
    shaky = replace(PLAIN, nodes=48, broken=1, spares=100, person_h=8)
    without, guarded = (summary(run(replace(shaky, guard=guard), 30)) for guard in (False, True))
    failures = without.failures
    assert guarded.mean - without.mean == pytest.approx(failures * 8 / (90 * 24), rel=0.15)
    assert without.attempts > guarded.attempts


def test_the_range_told_leaves_a_tenth_of_the_trains_on_either_side() -> None:
    outcome = run(SimulationSetup(nodes=8, days=1), 1)[0]
    found = summary([replace(outcome, wall_h=1.0, effective_h=share / 100) for share in range(101)])
    assert (found.low, found.mean, found.high) == (pytest.approx(0.1), pytest.approx(0.5), pytest.approx(0.9))


def test_the_guard_finds_the_lemons() -> None:
    setup = replace(PLAIN, nodes=200, lemons=5, lemon_factor=100, spares=20)
    guarded, without = (summary(run(replace(setup, guard=guard), 10)) for guard in (True, False))
    assert guarded.removed == 5
    assert without.removed == 0
    assert guarded.failures < without.failures / 3


def test_a_train_waits_where_more_nodes_are_out_than_there_are_spares() -> None:
    setup = replace(PLAIN, nodes=200, broken=1, repair_days=3)
    none, enough = (summary(run(replace(setup, spares=count), 10)) for count in (0, 40))
    assert none.lost["held"] > 0.5
    assert enough.lost["held"] == 0


def test_the_knob_that_helps_most_is_the_one_that_costs_most() -> None:
    setup = replace(PLAIN, nodes=48, days=30, queue_h=10, task_h=20)
    outcomes = run(setup, 10)
    found = rank_knobs(setup, outcomes)
    assert found[0].change == "half the wait in the queue"
    assert [knob.gain for knob in found] == sorted((knob.gain for knob in found), reverse=True)
    assert found[0].gain > 10 * found[0].error


def test_a_change_is_tried_on_the_same_failures_and_so_seen_sooner() -> None:
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
    lemons=st.integers(0, 20),
    spares=st.integers(0, 50),
    repair_days=st.floats(0, 10),
    person_h=st.floats(0, 48),
    guard=st.booleans(),
)


@example(setup=replace(ROUGH, broken=1, start_up_h=2.3e-313, queue_h=0.0, person_h=1.0), seed=0)
@given(setup=SETUPS, seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_effective_and_lost_hours_add_up_to_the_wall_clock(setup: SimulationSetup, seed: int) -> None:
    simulated = simulate(setup, seed=seed)
    assert simulated.effective_h + sum(simulated.lost.values()) == pytest.approx(simulated.wall_h, rel=1e-9, abs=1e-9)
    assert 0 <= simulated.share <= 1
    assert all(hours >= 0 for hours in simulated.lost.values())


def test_the_spread_is_that_of_the_trains() -> None:
    outcomes = run(ROUGH, 12)
    found = summary(outcomes)
    assert found.mean == pytest.approx(fmean(outcome.share for outcome in outcomes))
    assert found.low <= found.mean <= found.high
    assert summary(outcomes[:1]).spread == 0


def test_all_that_cannot_be_simulated_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        SimulationSetup(nodes=10, lemons=20, hangs=2, task_h=0.05)
    assert caught.value.message == (
        "simulation: 3 problems\n  hangs is 2, needs to be between 0 and 1\n  20 lemons among 10 nodes\n"
        "  a task of 0.05 h ends before a start-up and a save do"
    )


def test_a_train_that_fails_all_the_time_is_refused_instead_of_simulated_for_ever() -> None:
    with pytest.raises(InputError, match=r"a failure every 0\.089 s: no train gets anywhere"):
        SimulationSetup(nodes=150_000, per_1000_node_days=6500)
