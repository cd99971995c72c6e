"""The simulation at full length: a grid against the exact form, and its speed. `pytest
tests/endurance/test_simulate.py`"""

import time
from dataclasses import replace
from itertools import product

import pytest

from opsctl.calc.save_interval import renewal
from opsctl.calc.sensitivity import rank_knobs, run, summary
from opsctl.calc.simulation import SimulationSetup

LARGE = SimulationSetup(
    nodes=2048, days=90, per_1000_node_days=6.5, interval_h=1, save_h=0, start_up_h=5 / 60, hangs=0, broken=0
)
GRID = list(product((48, 512, 2048), (1 / 12, 1.0, 6.0), (0.0, 0.1), (0.02, 0.5), (0.0, 1.0)))


@pytest.mark.parametrize(("nodes", "interval", "save", "restart", "queue"), GRID)
def test_the_exact_form_is_met_within_a_point_everywhere(
    nodes: int, interval: float, save: float, restart: float, queue: float
) -> None:
    setup = replace(
        LARGE, nodes=nodes, days=365, interval_h=interval, save_h=save, start_up_h=restart, queue_h=queue, hangs=0.2
    )
    exact = renewal(
        mtbf_h=setup.mtbf_h, interval_h=interval, save_h=save, restart_h=restart, down_h=0.2 * setup.notice_h + queue
    )
    found = summary(run(setup, 60))
    assert found.error < 0.0025
    assert found.mean == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(("interval", "published"), [(1, 0.70), (1 / 12, 0.93)])
def test_metas_published_cases_of_16384_gpus_with_200_seeds(interval: float, published: float) -> None:
    assert summary(run(replace(LARGE, interval_h=interval), 200)).mean == pytest.approx(published, abs=0.03)


def test_16384_gpus_for_90_days_with_200_seeds_take_less_than_a_minute() -> None:
    began = time.perf_counter()
    run(LARGE, 200)
    assert time.perf_counter() - began < 60


def test_so_do_all_knobs_of_50_seeds() -> None:
    began = time.perf_counter()
    rank_knobs(LARGE, run(LARGE, 50))
    assert time.perf_counter() - began < 60
