"""Accounting of a race's seconds. `pytest tests/unit/benchmarks`"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last, because benchmarks has a trainer.py too

from race.time_account import Account, Event, Sample, account


def attempt(job: str, start: float, first: int, last: int) -> Iterator[Event]:
    """Yield three seconds of start-up, then uninterrupted steps of a quarter of a second."""
    yield Event(at=start, job=job, what="start")
    for number, step in enumerate(range(first, last + 1), 1):
        yield Event(at=start + 3 + number / 4, job=job, what="step", step=step)


def make_samples(*rows: tuple[float, dict[str, str], bool]) -> list[Sample]:
    return [Sample(at=at, states=states, waits=waits) for at, states, waits in rows]


def sample_every_second(seconds: int, states: dict[str, str], *, start: int = 0, **more: bool) -> list[Sample]:
    return [Sample(at=at, states=states, **more) for at in range(start, seconds)]


def adds_up(total: Account) -> bool:
    return total.effective + sum(total.lost.values()) == pytest.approx(total.end - total.begin)


def test_repeated_steps_do_not_count() -> None:
    events = [*attempt("1", 0, 1, 40), *attempt("2", 13, 21, 60)]  # the second resumes from the checkpoint of step 20
    total = account(events, make_samples((13, {"1": "FAILED", "2": "RUNNING"}, True)), begin=0, end=26)
    assert (total.steps, total.effective) == (60, 15)
    assert total.lost == {"start-up": 6, "done twice": 5}
    assert adds_up(total)


def test_attempt_without_a_step_is_burnt() -> None:
    events = [Event(at=1, job="1", what="start"), *attempt("2", 6, 1, 4)]
    total = account(
        events,
        [*sample_every_second(5, {"1": "RUNNING"}), *sample_every_second(6, {"1": "FAILED"}, start=5)],
        begin=0,
        end=10,
    )
    assert total.lost["burnt attempts"] == 4
    assert adds_up(total)


def test_hang_counts_until_its_detection() -> None:
    events = list(attempt("1", 0, 1, 4))
    samples = [
        *sample_every_second(20, {"1": "RUNNING"}),
        *sample_every_second(30, {"1": "CANCELLED"}, start=20, waits=True),
    ]
    total = account(events, samples, begin=0, end=30, faults=[(4, "hang")], noticed=[15])
    assert total.lost == pytest.approx({"start-up": 3, "hang until noticed": 11, "ending": 5, "queue": 10})


def test_waiting_held_and_unqueued_time_are_distinguished() -> None:
    samples = [
        *sample_every_second(10, {}, waits=True),
        *sample_every_second(20, {}, start=10, waits=True, held=True),
        *sample_every_second(31, {}, start=20),
    ]
    total = account([], samples, begin=0, end=30)
    assert total.lost == pytest.approx({"queue": 9, "held": 10, "nothing queued": 11})


def test_requeued_job_has_two_attempts() -> None:
    events = [*attempt("1", 0, 1, 4), *attempt("1", 10, 5, 8)]
    samples = [
        *sample_every_second(5, {"1": "RUNNING"}),
        *sample_every_second(8, {"1": "PENDING"}, start=5, waits=True),
        *sample_every_second(14, {"1": "RUNNING"}, start=8),
    ]
    total = account(events, samples, begin=0, end=14)
    assert (total.attempts, total.steps) == (2, 8)
    assert total.lost == pytest.approx({"start-up": 6, "ending": 1, "queue": 3, "launching": 2})


def test_time_after_the_end_does_not_count() -> None:
    total = account(list(attempt("1", 0, 1, 100)), [], begin=0, end=13)
    assert (total.steps, total.effective) == (40, 10)
    assert adds_up(total)
