"""The deadline file: asked of Slurm rarely, and kept up to date."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event

import pytest

from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.guard.deadline import UNLIMITED_MINUTES, DeadlineFile
from opsctl.trainer.contract import read_time
from tests.support.cases import read_cases
from tests.support.finalized_trains import BEGIN, Queue, QueuedTrain


@pytest.fixture
def deadline(train: QueuedTrain) -> DeadlineFile:
    attempt = train.start_attempt()
    train.clock.time = BEGIN
    train.queue.end = BEGIN + timedelta(hours=1)
    return DeadlineFile(
        arrays=train.arrays,
        attempt=attempt,
        job="13",
        clock=train.clock,
        every_s=300,
        draw=lambda low, high: (low + high) / 2,
    )


def calls_within(train: QueuedTrain, deadline: DeadlineFile, seconds: int) -> int:
    before = len(train.queue.calls)
    for _ in range(seconds // 2):
        deadline.refresh()
        train.clock.sleep(2)
    return len(train.queue.calls) - before


def test_slurm_is_asked_rarely(train: QueuedTrain, deadline: DeadlineFile) -> None:
    train.queue.end = BEGIN + timedelta(hours=20)
    assert calls_within(train, deadline, 3600) == 12


@pytest.mark.parametrize(("place", "calls"), [(0, 4), (1, 3)])
def test_guards_that_start_together_ask_apart(
    train: QueuedTrain, deadline: DeadlineFile, place: int, calls: int
) -> None:
    train.queue.end = BEGIN + timedelta(hours=20)
    deadline.draw = lambda *bounds: bounds[place]
    assert calls_within(train, deadline, 722) == calls


def test_slurm_is_asked_more_often_near_the_end(train: QueuedTrain, deadline: DeadlineFile) -> None:
    train.clock.sleep(3540)
    assert calls_within(train, deadline, 60) == 10


def test_file_follows_a_changed_limit(train: QueuedTrain, deadline: DeadlineFile) -> None:
    deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=1)).timestamp()
    train.queue.end = BEGIN + timedelta(hours=2)
    train.clock.sleep(300)
    deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=2)).timestamp()


def test_removed_limit_leaves_no_deadline(train: QueuedTrain, deadline: DeadlineFile) -> None:
    deadline.refresh()
    train.queue.end = None
    train.clock.sleep(300)
    deadline.refresh()
    assert not deadline.attempt.deadline.exists()


def test_silent_slurm_changes_nothing_and_is_asked_later(train: QueuedTrain, deadline: DeadlineFile) -> None:
    deadline.refresh()
    train.queue.breaks_after = len(train.queue.calls)
    train.clock.sleep(300)
    with pytest.raises(Unreachable):
        deadline.refresh()
    assert not deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=1)).timestamp()


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(3600, 58), (3659, 58), (240, 2), (100, 1), (-5, 1), (None, UNLIMITED_MINUTES)]
)
def test_minutes_left_are_whole_and_at_least_one(
    train: QueuedTrain, deadline: DeadlineFile, seconds: int | None, minutes: int
) -> None:
    train.queue.end = None if seconds is None else BEGIN + timedelta(seconds=seconds)
    deadline.refresh()
    assert deadline.minutes_left(120) == minutes


class BusyQueue(Queue):
    """A queue whose controller answers once `is_free` is set."""

    is_free: Event

    def end_time(self, job: str) -> datetime | None:
        assert self.is_free.wait(250)
        return super().end_time(job)


@pytest.mark.parametrize(*read_cases(__file__, "busy_slurm_delays_no_ranks"))
def test_busy_slurm_delays_no_ranks(
    train: QueuedTrain, deadline: DeadlineFile, env: dict[str, str], limit: str, minutes: int | None
) -> None:
    train.run.config.write_text(f"[slurm]\n{limit}\n")
    busy = BusyQueue(end=BEGIN + timedelta(hours=1))
    deadline.arrays = replace(train.arrays, slurm=busy)
    busy.is_free = Event()
    deadline.begin(env, lambda _: suppress(OpsctlError))
    deadline.await_first_answer()
    assert deadline.minutes_left(120) == (minutes or UNLIMITED_MINUTES)
    busy.is_free.set()
    deadline.await_first_answer()
    assert deadline.minutes_left(120) == 58
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=1)).timestamp()


def test_slurm_that_fails_at_first_leaves_the_limit(train: QueuedTrain, deadline: DeadlineFile) -> None:
    train.queue.breaks_after = len(train.queue.calls)
    deadline.begin({}, lambda _: suppress(OpsctlError))
    deadline.await_first_answer()
    assert deadline.minutes_left(120) == 8


def test_answer_without_a_limit_counts(train: QueuedTrain, deadline: DeadlineFile) -> None:
    train.queue.end = None
    deadline.begin({}, lambda _: suppress(OpsctlError))
    deadline.await_first_answer()
    assert deadline.minutes_left(120) == UNLIMITED_MINUTES
