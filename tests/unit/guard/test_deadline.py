"""When the job will be ended, asked for rarely and kept true."""

from __future__ import annotations

from datetime import timedelta

import pytest

from opsctl.errors import Unreachable
from opsctl.guard.deadline import UNLIMITED_MINUTES, DeadlineFile
from opsctl.trainer.contract import read_time
from tests.support.finalized_trains import BEGIN, World


@pytest.fixture
def deadline(world: World) -> DeadlineFile:
    attempt = world.start_attempt()
    world.clock.time = BEGIN
    world.queue.end = BEGIN + timedelta(hours=1)
    return DeadlineFile(run=world.run, attempt=attempt, job="13", scheduler=world.queue, clock=world.clock)


def calls_within(world: World, deadline: DeadlineFile, seconds: int) -> int:
    before = len(world.queue.calls)
    for _ in range(seconds // 2):
        deadline.refresh()
        world.clock.sleep(2)
    return len(world.queue.calls) - before


def test_slurm_is_asked_once_a_minute_not_at_every_poll(world: World, deadline: DeadlineFile) -> None:
    assert calls_within(world, deadline, 600) == 10


def test_slurm_is_asked_more_often_in_the_last_minutes(world: World, deadline: DeadlineFile) -> None:
    world.clock.sleep(3540)
    assert calls_within(world, deadline, 60) == 10


def test_the_file_follows_a_limit_that_is_moved(world: World, deadline: DeadlineFile) -> None:
    deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=1)).timestamp()
    world.queue.end = BEGIN + timedelta(hours=2)
    world.clock.sleep(60)
    deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=2)).timestamp()


def test_a_limit_that_is_lifted_leaves_no_deadline(world: World, deadline: DeadlineFile) -> None:
    deadline.refresh()
    world.queue.end = None
    world.clock.sleep(60)
    deadline.refresh()
    assert not deadline.attempt.deadline.exists()


def test_a_slurm_that_does_not_answer_changes_nothing_and_is_asked_again_in_a_minute(
    world: World, deadline: DeadlineFile
) -> None:
    deadline.refresh()
    world.queue.breaks_after = len(world.queue.calls)
    world.clock.sleep(60)
    with pytest.raises(Unreachable):
        deadline.refresh()
    assert not deadline.refresh()
    assert read_time(deadline.attempt.deadline) == (BEGIN + timedelta(hours=1)).timestamp()


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(3600, 58), (3659, 58), (240, 2), (100, 1), (-5, 1), (None, UNLIMITED_MINUTES)]
)
def test_the_minutes_left_are_whole_and_never_none(
    world: World, deadline: DeadlineFile, seconds: int | None, minutes: int
) -> None:
    world.queue.end = None if seconds is None else BEGIN + timedelta(seconds=seconds)
    deadline.refresh()
    assert deadline.minutes_left(120) == minutes
