"""What opsctl proposes instead of doing, as `[policy]` says, and what follows once a person confirms."""

from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.base.findings import Level
from opsctl.guard.end_record import Action, FinishedAttempt
from opsctl.guard.finalize import finalize
from opsctl.settings.health import PolicySettings
from opsctl.state.reasons import as_written
from opsctl.trainer.contract import TrainerStop
from tests.support.finalized_trains import QueuedTrain, make_node_care
from watchdogs.failures import failures


def end(train: QueuedTrain, number: int = 1, *, stop: TrainerStop | None = None, **steps: str) -> FinishedAttempt:
    """Finalize an attempt under a policy: one that the trainer stopped, or else a short crash."""
    attempt = train.start_attempt(f"12_{number}.0")
    if stop:
        train.stop_trainer(attempt, stop)
    train.end_body(attempt, 0 if stop else 1)
    care = replace(make_node_care(train), policy=PolicySettings.model_validate(steps))
    return finalize(train.arrays, train.rules, attempt, care=care)


def crash_three_times(train: QueuedTrain, **steps: str) -> FinishedAttempt:
    return [end(train, number, **steps) for number in (1, 2, 3)][-1]


def list_open(train: QueuedTrain) -> list[str]:
    found = failures(train.run, train.arrays.journal.events(), train.clock.now())
    return [finding.says.kind for finding in found if finding.level is Level.CRITICAL]


def test_a_proposed_hold_is_open_until_a_person_holds(train: QueuedTrain) -> None:
    ended = crash_three_times(train, hold="propose")
    assert (ended.action, "hold" in train.queue.calls) == (Action.PROPOSE_HOLD, False)
    assert list_open(train) == ["failures.proposes_hold"]
    train.arrays.hold(as_written("yes"))
    assert list_open(train) == []


def test_a_proposed_hold_is_over_once_a_person_decides_otherwise(train: QueuedTrain) -> None:
    crash_three_times(train, hold="propose")
    train.arrays.release()
    assert list_open(train) == []


def test_a_training_that_is_over_is_held_until_a_person_cancels(train: QueuedTrain) -> None:
    ended = end(train, stop=TrainerStop.FINISHED, cancel="propose")
    assert (ended.action, "cancel" in train.queue.calls) == (Action.PROPOSE_CANCEL, False)
    assert all(row.is_held for row in train.queue.waiting)
    assert list_open(train) == ["failures.proposes_cancel"]
    train.arrays.cancel(as_written("yes"))
    assert list_open(train) == []


def test_what_a_person_asked_for_is_done_at_once(train: QueuedTrain) -> None:
    ended = end(train, stop=TrainerStop.PAUSE, hold="propose", cancel="propose")
    assert (ended.action, "hold" in train.queue.calls) == (Action.HOLD_QUEUED, True)


def test_a_proposed_exclusion_excludes_nothing(train: QueuedTrain) -> None:
    train.queue.states["node001"] = "DOWN"
    attempt = train.start_attempt(nodes="node[001-002]")
    train.run.main_log.write_text("srun: error: Node failure on node001\n")
    train.end_body(attempt, 1, after=3600)
    care = replace(make_node_care(train), policy=PolicySettings(exclude="propose"))
    ended = finalize(train.arrays, train.rules, attempt, care=care)
    assert (ended.suspects, ended.action) == (("node001",), Action.CONTINUE)
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])
    assert ended.done == ("proposed to exclude node001; to do it: opsctl release gpt --exclude node001",)
    assert list_open(train) == ["failures.proposes_exclusion"]


def test_two_attempts_that_end_at_once_keep_to_the_limit_of_a_day(train: QueuedTrain) -> None:
    """The other attempt excludes its nodes between our check and our entry."""
    exclusions = make_node_care(train).exclusions
    exclusions.add([("node001", "x"), ("node002", "x")], hours=1, per_day=2)
    with pytest.raises(InputError, match="exclude_per_day allows 2 in 24 h, with 2 excluded so far"):
        exclusions.add([("node003", "x")], hours=1, per_day=2)
    assert [out.node for out in exclusions.now()] == ["node001", "node002"]
