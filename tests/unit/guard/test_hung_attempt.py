"""What the guard does once an attempt certainly hangs."""

import pytest

from opsctl.guard import hang_evidence
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.guard.supervisor import Supervisor
from tests.support.finalized_trains import QueuedTrain
from tests.unit.guard.test_quiet_ranks import leave_mark

ENV = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "node001"}


@pytest.fixture
def guard(train: QueuedTrain) -> Supervisor:
    """A guard whose rank has been stopped for longer than any limit."""
    train.rules = train.rules.model_copy(update={"quiet_seconds": 5.0})
    guard = Supervisor(
        arrays=train.arrays, rules=train.rules, runner=None, env=ENV, check_trusted=lambda: None, make_care=lambda: None
    )
    train.start_attempt(guard.attempt.name)
    leave_mark(guard.quiet.marks, "stopped-0-1")
    guard.quiet.find_hang()
    train.clock.sleep(10)
    return guard


def save_stacks_with(monkeypatch: pytest.MonkeyPatch, meanwhile) -> list[str]:
    saved: list[str] = []

    def save(*_: object) -> None:
        saved.append("stacks")
        meanwhile()

    monkeypatch.setattr(hang_evidence, "save_stacks", save)
    return saved


def test_hung_attempt_is_ended_once_while_slurm_does_not_answer(
    train: QueuedTrain, guard: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save_stacks_with(monkeypatch, lambda: None)
    train.queue.breaks_after = len(train.queue.calls)
    assert guard._end_if_hung()  # the guard then ends the processes of this node, srun among them
    assert saved == ["stacks"]


def test_attempt_that_advances_while_stacks_are_saved_goes_on(
    train: QueuedTrain, guard: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_on() -> None:
        guard.run.main_log.write_text("iteration 7/ 100 | lm loss: 2.0E+00 |\n")

    save_stacks_with(monkeypatch, train_on)
    assert not guard._end_if_hung()
    assert read_stop_request(guard.attempt) is None
    assert "signal KILL" not in train.queue.calls


def test_hung_attempt_is_killed(train: QueuedTrain, guard: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    save_stacks_with(monkeypatch, lambda: None)
    assert guard._end_if_hung()
    request = read_stop_request(guard.attempt)
    assert request is not None and request.reason is StopKind.HUNG
    assert "signal KILL" in train.queue.calls
