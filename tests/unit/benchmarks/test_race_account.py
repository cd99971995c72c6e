"""Where a race's seconds went. `pytest tests/unit/benchmarks`"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last: beside it lies another trainer.py

from race.time_account import Account, Event, Sample, account


def attempt(job: str, start: float, first: int, last: int) -> Iterator[Event]:
    """Three seconds of start-up, then steps of a quarter of a second without a pause."""
    yield Event(at=start, job=job, what="start")
    for number, step in enumerate(range(first, last + 1), 1):
        yield Event(at=start + 3 + number / 4, job=job, what="step", step=step)


def seen(*rows: tuple[float, dict[str, str], bool]) -> list[Sample]:
    return [Sample(at=at, states=states, waits=waits) for at, states, waits in rows]


def every(seconds: int, states: dict[str, str], *, start: int = 0, **more: bool) -> list[Sample]:
    return [Sample(at=at, states=states, **more) for at in range(start, seconds)]


def adds_up(found: Account) -> bool:
    return found.effective + sum(found.lost.values()) == pytest.approx(found.end - found.begin)


def test_steps_done_for_the_first_time_count_and_those_done_again_do_not() -> None:
    events = [*attempt("1", 0, 1, 40), *attempt("2", 13, 21, 60)]  # the second goes on from a checkpoint of step 20
    found = account(events, seen((13, {"1": "FAILED", "2": "RUNNING"}, True)), begin=0, end=26)
    assert (found.steps, found.effective) == (60, 15)
    assert found.lost == {"start-up": 6, "done twice": 5}
    assert adds_up(found)


def test_a_attempt_without_a_step_is_burnt() -> None:
    events = [Event(at=1, job="1", what="start"), *attempt("2", 6, 1, 4)]
    found = account(events, [*every(5, {"1": "RUNNING"}), *every(6, {"1": "FAILED"}, start=5)], begin=0, end=10)
    assert found.lost["burnt attempts"] == 4
    assert adds_up(found)


def test_a_hang_is_counted_until_it_was_noticed() -> None:
    events = list(attempt("1", 0, 1, 4))
    samples = [*every(20, {"1": "RUNNING"}), *every(30, {"1": "CANCELLED"}, start=20, waits=True)]
    found = account(events, samples, begin=0, end=30, faults=[(4, "hang")], noticed=[15])
    assert found.lost == pytest.approx({"start-up": 3, "hang until noticed": 11, "ending": 5, "queue": 10})


def test_what_waits_is_told_apart_from_what_is_held_and_from_nothing_at_all() -> None:
    samples = [*every(10, {}, waits=True), *every(20, {}, start=10, waits=True, held=True), *every(31, {}, start=20)]
    found = account([], samples, begin=0, end=30)
    assert found.lost == pytest.approx({"queue": 9, "held": 10, "nothing queued": 11})


def test_a_job_that_is_requeued_has_two_attempts() -> None:
    events = [*attempt("1", 0, 1, 4), *attempt("1", 10, 5, 8)]
    samples = [*every(5, {"1": "RUNNING"}), *every(8, {"1": "PENDING"}, start=5, waits=True),
               *every(14, {"1": "RUNNING"}, start=8)]  # fmt: skip
    found = account(events, samples, begin=0, end=14)
    assert (found.attempts, found.steps) == (2, 8)
    assert found.lost == pytest.approx({"start-up": 6, "ending": 1, "queue": 3, "launching": 2})


def test_nothing_counts_that_happened_after_the_end() -> None:
    found = account(list(attempt("1", 0, 1, 100)), [], begin=0, end=13)
    assert (found.steps, found.effective) == (40, 10)
    assert adds_up(found)
