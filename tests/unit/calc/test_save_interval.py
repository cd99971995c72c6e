"""Checkpoints, storage and spares against published figures. `pytest tests/unit/calc/test_save_interval.py`"""

import math
from itertools import islice

import pytest

from opsctl.base.errors import InputError
from opsctl.calc import save_interval, spares
from opsctl.calc.gpt_size import PUBLISHED, parameters
from opsctl.calc.save_interval import renewal

HOUR, WEEK = 3600.0, 7 * 86400.0


def test_bloom_checkpoints_cost_0_37_percent() -> None:
    cost = save_interval.cost(interval_s=3 * HOUR, save_s=40, mtbf_s=WEEK)
    assert cost.saving == pytest.approx(0.0037, abs=0.00005)
    assert cost.lost_per_failure_s == 1.5 * HOUR
    assert 90 * 24 / 3 == 720
    assert 720 * 40 / 3600 == 8
    slower = save_interval.cost(interval_s=3 * HOUR, save_s=200, mtbf_s=WEEK)
    assert slower.saving == pytest.approx(0.02, abs=0.002)
    assert 720 * 200 / 3600 == 40


def test_bloom_optimum_is_1_93_hours() -> None:
    assert save_interval.young(40, WEEK) == pytest.approx(6956, abs=1)
    assert save_interval.daly(40, WEEK) == pytest.approx(6916, abs=1)
    assert save_interval.with_restart(40, WEEK, 0) == pytest.approx(6996, abs=1)


def test_bloom_checkpoint_is_2_24_tib() -> None:
    """The size is 14 bytes a parameter; the book says 2.3 TB."""
    size = save_interval.size_bytes(parameters(PUBLISHED["bloom"]))
    assert size / 2**40 == pytest.approx(2.24, abs=0.01)
    assert size / 1e12 == pytest.approx(2.47, abs=0.01)


def test_2_3_tb_every_3_hours_are_18_4_tb_a_day() -> None:
    """The book prints 2.6."""
    assert save_interval.per_day(2.3, 3 * HOUR) == pytest.approx(18.4)


def test_13b_checkpoint_is_0_4_tb() -> None:
    # One checkpoint every 18 steps of 32 s, and none is deleted.
    assert save_interval.per_day(4 / 10, 18 * 32) == pytest.approx(60)
    assert save_interval.per_day(20 / 51, 18 * 32) == pytest.approx(60, rel=0.02)


def test_interval_with_restart_maximizes_the_exact_form() -> None:
    mtbf, save, restart = 3 * HOUR, 60.0, 600.0
    best = save_interval.with_restart(save, mtbf, restart)

    def effective(seconds: float) -> float:
        return renewal(mtbf_h=mtbf / HOUR, interval_h=seconds / HOUR, save_h=save / HOUR, restart_h=restart / HOUR)

    top = max(effective(best * by / 100) for by in range(30, 300))
    assert effective(best) == pytest.approx(top, abs=0.001)


def test_save_longer_than_the_mtbf_gives_a_finite_result() -> None:
    assert save_interval.daly(100, 10) == 10


def test_failures_cost_at_most_all_the_time() -> None:
    assert save_interval.cost(interval_s=HOUR, save_s=1, mtbf_s=60).failing == 1


def test_interval_is_at_least_one_step() -> None:
    assert save_interval.in_steps(10, 105) == 1
    assert save_interval.in_steps(3 * HOUR, 105) == 103


def test_mtbf_of_meta_is_1_8_and_0_23_hours() -> None:
    assert spares.mtbf_hours(16384 // 8, 6.5) == pytest.approx(1.8, abs=0.01)
    assert spares.mtbf_hours(131072 // 8, 6.5) == pytest.approx(0.23, abs=0.01)


def test_exact_form_matches_published_values() -> None:
    mtbf = spares.mtbf_hours(2048, 6.5)
    assert renewal(mtbf_h=mtbf, interval_h=1, restart_h=1 / 12) == pytest.approx(0.714, abs=0.001)
    assert renewal(mtbf_h=mtbf, interval_h=1 / 12, restart_h=1 / 12) == pytest.approx(0.93, abs=0.005)
    assert renewal(mtbf_h=spares.mtbf_hours(512, 6.5), interval_h=1, restart_h=1 / 12) == pytest.approx(0.92, abs=0.005)


def test_1_over_n_law_fails_for_small_jobs() -> None:
    assert spares.mtbf_hours(1, 6.5) / 24 == pytest.approx(154, abs=1)  # 47.7 days were measured at 8 GPUs
    assert spares.mtbf_hours(128, 6.5) == pytest.approx(28.8, abs=0.1)  # 7.9 hours were measured at 1024


def test_very_frequent_failures_leave_nothing_effective() -> None:
    assert renewal(mtbf_h=0.001, interval_h=10) == 0


def test_four_spares_of_52_nodes_are_enough() -> None:
    out = spares.out_at_once(48, 3, 3)
    assert spares.failures_per_week(48, 3) == pytest.approx(1.008)
    assert spares.spares(out, 0.99) <= 4
    assert (416 - 384) / 8 == 4
    assert 0.05 < 4 / 52 < 0.10  # the book's share of spare nodes


def test_one_spare_fewer_misses_the_confidence() -> None:
    for mean in (0.3, 2.0, 40.0):
        count = spares.spares(mean, 0.95)
        known = list(islice(spares.enough(mean), count + 1))
        assert known[count] >= 0.95
        assert count == 0 or known[count - 1] < 0.95


def test_poisson_and_normal_agree_at_the_switch() -> None:
    count = next(n for n, known in enumerate(spares.enough(499.0)) if known >= 0.99)
    assert abs(count - spares.spares(501.0, 0.99)) <= 5


@pytest.mark.parametrize("confidence", [0, 1, math.nan])
def test_certainty_needs_infinite_spares(confidence: float) -> None:
    with pytest.raises(InputError, match="needs to be between 0 and 1, and neither"):
        spares.spares(1, confidence)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        save_interval.cost(interval_s=0, save_s=-1, mtbf_s=math.inf)
    assert caught.value.message == (
        "checkpoints: 3 problems\n  interval (s) is 0, needs to be above 0\n  mtbf (s) is inf, needs to be above 0\n"
        "  save (s) is -1, needs to be 0 or more"
    )
