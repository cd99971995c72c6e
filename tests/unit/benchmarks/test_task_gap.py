"""What the benchmark of task changes reads from the lines of its trainer."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last, because benchmarks has a trainer.py too

from task_gap import NODES, RANKS_A_NODE, find_gaps

RANKS = NODES * RANKS_A_NODE


def write_task(job: int, begin: float, end: float) -> list[str]:
    """Return the lines of a task whose ranks begin and end one after another, 0.1 s apart."""
    begins = [f"{job} {rank} {begin + rank / 10}" for rank in range(RANKS)]
    return begins + [f"{job} {rank} {end + rank / 10}" for rank in range(RANKS)]


def test_gap_lasts_from_the_last_rank_to_the_last_rank() -> None:
    lines = [*write_task(1, 10, 20), *write_task(2, 22, 30), *write_task(3, 33, 40)]
    assert find_gaps(lines) == pytest.approx([2, 3])


def test_tasks_are_ordered_by_time_not_by_job() -> None:
    # The last task of an array gets the number of the array.
    assert find_gaps([*write_task(2, 10, 20), *write_task(1, 24, 30)]) == pytest.approx([4])
