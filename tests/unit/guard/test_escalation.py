"""The steps of a stop: which follow a request, when, and how people see them."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.actions.steer_train import name_done_by_guard
from opsctl.base.model import JobState
from opsctl.guard.apply_switches import apply_switches
from opsctl.guard.escalation import (
    Escalation,
    describe_stop,
    plan_stop,
    reads_stop_request,
)
from opsctl.guard.stop_request import StopKind, StopPlan, StopRequest, read_stop_request, request_stop
from opsctl.monitor.reconcile import reconcile
from opsctl.settings.loader import GuardSettings
from opsctl.state import switches
from opsctl.state.events import Cancelled
from opsctl.state.reasons import as_written
from opsctl.state.switches import Switch
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.cases import read_cases
from tests.support.clocks import FakeClock
from tests.support.finalized_trains import BEGIN, QueuedTrain


def seconds(plan: StopPlan) -> tuple[str, float | None, float | None]:
    """Return the signal, and when signal and end come, in seconds after the request."""
    at = [None if time is None else (time - BEGIN).total_seconds() for time in (plan.signal_at, plan.kill_at)]
    return plan.signal, at[0], at[1]


@pytest.mark.parametrize(*read_cases(__file__, "switch_is_followed_by_a_signal_and_the_end"))
@pytest.mark.parametrize("kind", [StopKind.KILL, StopKind.PAUSE])
def test_switch_is_followed_by_a_signal_and_the_end(
    kind: StopKind, rules: dict[str, object], reads: bool, steps: dict[str, object]
) -> None:
    plan = plan_stop(kind, BEGIN, GuardSettings.model_validate(rules), reads_request=reads)
    assert seconds(plan) == tuple(map(steps.get, ("signal", "signal_at", "kill_at")))


@pytest.mark.parametrize(*read_cases(__file__, "time_limit_is_followed_by_a_signal_that_is_set", kind=StopKind))
def test_time_limit_is_followed_by_a_signal_that_is_set(
    kind: StopKind, rules: dict[str, object], signal_at: float | None
) -> None:
    deadline = BEGIN + timedelta(seconds=60)
    plan = plan_stop(kind, BEGIN, GuardSettings.model_validate(rules), reads_request=False, deadline=deadline)
    assert (seconds(plan)[1], plan.kill_at) == (signal_at, None)


def test_steps_come_due_once(train: QueuedTrain) -> None:
    clock, attempt = FakeClock(BEGIN), train.start_attempt()
    escalation = Escalation(clock)
    assert not escalation.is_signal_due(train.run, attempt)
    assert not escalation.is_kill_due(train.run, attempt)
    escalation.begin(plan_stop(StopKind.KILL, BEGIN, GuardSettings(), reads_request=False), BEGIN)
    clock.sleep(59)
    assert not escalation.is_signal_due(train.run, attempt)
    clock.sleep(1)
    assert escalation.is_signal_due(train.run, attempt)
    escalation.has_signalled = True
    assert not escalation.is_signal_due(train.run, attempt)
    clock.sleep(120)
    assert escalation.is_kill_due(train.run, attempt)


def test_reader_of_the_stop_request_is_known(train: QueuedTrain, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    train.run.body.write_text(f"cd -- {tmp_path}\nsrun rank -- python train.py\n")
    script.write_text("import torch\n")
    assert not reads_stop_request(train.run)
    script.write_text("os.environ['TRAIN_STOP_REQUEST']\n")
    assert reads_stop_request(train.run)
    train.run.body.write_text('srun rank -- ./train --stop "$TRAIN_STOP_REQUEST"\n')
    assert reads_stop_request(train.run)


@dataclass
class SkewedClock(FakeClock):
    """A clock whose time of day jumps."""

    skew_s: float = 0.0

    def now(self) -> datetime:
        return self.time + timedelta(seconds=self.skew_s)


@pytest.mark.parametrize("skew_s", [0, 6 * 3600, -6 * 3600])
@pytest.mark.parametrize(("phase", "after_s", "is_due"), [("save", 50, False), ("train", 50, True), ("save", 90, True)])
def test_saving_trainer_is_left_alone(
    train: QueuedTrain, phase: str, after_s: float, is_due: bool, skew_s: float
) -> None:
    attempt = train.start_attempt()
    clock = SkewedClock(BEGIN)
    escalation = Escalation(clock)
    at = BEGIN + timedelta(seconds=10)
    escalation.begin(StopPlan(signal="TERM", signal_at=at, kill_at=at), BEGIN)
    heartbeat = Heartbeat(
        attempt=attempt.name,
        node="n",
        rank=0,
        phase=Phase(phase),
        step=3,
        at=BEGIN.timestamp(),
        limit_s=60,
    )
    (train.run.heartbeat / "train.json").write_text(to_json(heartbeat))
    assert not escalation.is_signal_due(train.run, attempt)
    clock.skew_s = skew_s
    clock.sleep(after_s)
    assert escalation.is_signal_due(train.run, attempt) is is_due
    assert escalation.is_kill_due(train.run, attempt) is is_due


@pytest.mark.parametrize(*read_cases(__file__, "status_shows_each_step"))
def test_status_shows_each_step(train: QueuedTrain, after_s: float, text: str) -> None:
    attempt = train.start_attempt()
    plan = plan_stop(StopKind.KILL, BEGIN, GuardSettings(), reads_request=False)
    request_stop(train.run, attempt, StopKind.KILL, "by alice", at=BEGIN, plan=plan)
    request = read_stop_request(attempt)
    assert request is not None
    assert describe_stop(request, BEGIN + timedelta(seconds=after_s)) == text


def test_request_without_a_plan_is_read(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    attempt.stop_request.write_text(json.dumps({"reason": "term", "why": "w"}))
    assert read_stop_request(attempt) == StopRequest(reason=StopKind.TERM, why="w")


# --- the queue


def test_kill_switch_cancels_a_held_queue_without_any_task(train: QueuedTrain) -> None:
    train.arrays.hold(as_written("look first"))
    switches.arm(train.run, Switch.KILL, why="bad data")
    done = reconcile(train.arrays)
    assert train.queue.waiting == []
    assert done[1].startswith("cancelled the queued tasks of array 12")
    assert reconcile(train.arrays) == []


def test_pause_switch_holds_the_queue_once(train: QueuedTrain) -> None:
    switches.arm(train.run, Switch.PAUSE, why="")
    assert apply_switches(train.arrays, train.rules) == ["held the queued tasks of array 12"]
    assert all(job.is_held for job in train.queue.waiting)
    assert apply_switches(train.arrays, train.rules) == []


def test_tasks_that_a_guard_has_just_cancelled_are_named(train: QueuedTrain) -> None:
    seen, snapshot = train.queue.jobs(), train.arrays.check()
    switches.arm(train.run, Switch.KILL, why="")
    says = ["cancelled the queued tasks of array 12"]
    assert apply_switches(train.arrays, train.rules) == says
    assert apply_switches(train.arrays, train.rules, seen) == says
    assert name_done_by_guard(Switch.KILL, snapshot) == says
    assert name_done_by_guard(Switch.SAVE, snapshot) == []


def test_save_switch_leaves_the_queue_alone(train: QueuedTrain) -> None:
    switches.arm(train.run, Switch.SAVE, why="")
    assert apply_switches(train.arrays, train.rules) == []
    assert len(train.queue.waiting) == 1


def test_task_without_a_guard_is_cancelled_in_the_end(train: QueuedTrain) -> None:
    train.add_row((1,), JobState.RUNNING)
    switches.arm(train.run, Switch.KILL, why="")
    reconcile(train.arrays)
    train.clock.sleep(290)
    assert reconcile(train.arrays) == []
    train.clock.sleep(20)
    [text] = reconcile(train.arrays)
    assert text == "cancelled 12_1, which did not stop"
    assert [type(event) for event in train.arrays.journal.events()][-1] is Cancelled
