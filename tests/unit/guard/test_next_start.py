"""What happens between two starts in one allocation, and beside another task of the train."""

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from opsctl.base.errors import RunDirError
from opsctl.base.model import JobState
from opsctl.base.ports import Completed
from opsctl.guard import lost_node
from opsctl.guard.earlier_attempts import EarlierAttempts
from opsctl.guard.end_record import Action, Outcome
from opsctl.guard.finalize import finalize
from opsctl.guard.lost_node import find_missing_nodes, find_removed_nodes
from opsctl.guard.repair_wait import RepairWait
from opsctl.guard.restart import NextStart
from opsctl.guard.stop_request import StopKind, read_refusal, read_stop_request, request_stop
from opsctl.guard.supervisor import Supervisor
from opsctl.guard.tolerated import Tolerated
from opsctl.state.events import Edited, RestartDecided
from opsctl.state.reasons import as_written
from opsctl.state.switches import Switch, arm, read
from tests.support.finalized_trains import QueuedTrain, make_node_care

ENV = {
    "SLURM_JOB_ID": "13",
    "SLURM_ARRAY_JOB_ID": "12",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_JOB_NODELIST": "node[001-002]",
}


def make_guard(train: QueuedTrain, **env: str) -> Supervisor:
    return Supervisor(
        arrays=train.arrays,
        rules=train.rules,
        runner=None,  # type: ignore[arg-type]  # nothing is run
        env={**ENV, **env},
        check_trusted=lambda: None,
        make_care=lambda: make_node_care(train),
    )


def test_guard_waits_for_another_task_until_that_has_given_way(train: QueuedTrain) -> None:
    """The other job still shows as running when its attempt is finalized."""
    other = train.start_attempt("12_1.0")
    train.add_row((1,), JobState.RUNNING, nodes="node[001-002]")
    own = train.start_attempt("12_2.0")
    train.add_row((2,), JobState.RUNNING, nodes="node[003-004]")
    earlier = EarlierAttempts(
        arrays=train.arrays,
        rules=train.rules,
        own=own,
        make_care=lambda: make_node_care(train),
        tolerated=Tolerated(),
    )
    earlier.finalize()
    assert earlier.is_running
    train.end_body(other, 1)
    looks = []

    def finalize_other() -> None:
        assert len(looks) < 5, "the guard still waits"
        looks.append(finalize(train.arrays, train.rules, other))

    earlier.await_end(finalize_other)
    assert len(looks) == 1


def test_restart_switch_stops_no_body_that_has_not_started(train: QueuedTrain) -> None:
    arm(train.run, Switch.RESTART, why="x")
    guard = make_guard(train)
    guard._prepare()
    assert read_stop_request(guard.attempt) is None
    assert read(train.run, Switch.RESTART) is None


def test_restart_switch_that_cannot_be_removed_hides_no_kill_switch(
    train: QueuedTrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr("opsctl.guard.supervisor.disarm", refuse)
    arm(train.run, Switch.KILL, why="x")
    guard = make_guard(train)
    guard._prepare()
    assert read_stop_request(guard.attempt) is not None


@pytest.mark.parametrize("reason", [StopKind.KILL, StopKind.REFUSED])
def test_refusal_that_cannot_be_written_counts(train: QueuedTrain, reason: StopKind) -> None:
    def refuse() -> None:
        raise RunDirError("others could have written body.sh")

    (train.run.path / "attempts").rmdir()
    (train.run.path / "attempts").touch()  # as a full disk, where nothing can be recorded
    guard = make_guard(train)
    guard._prepare()
    assert guard.stopping.refusal is None
    if reason is StopKind.KILL:
        arm(train.run, Switch.KILL, why="x")
    else:
        guard.check_trusted = refuse
    guard._prepare()
    assert read_stop_request(guard.attempt) is None
    assert guard.stopping.refusal is not None
    assert guard.stopping.refusal.reason is reason


@pytest.mark.parametrize("code", [0, 143])
def test_damaged_stop_request_stops_no_training(train: QueuedTrain, code: int) -> None:
    attempt = train.start_attempt()
    attempt.stop_request.write_text("{")
    assert read_refusal(attempt) is None
    train.end_body(attempt, code)
    ended = finalize(train.arrays, train.rules, attempt)
    assert (ended.outcome, ended.action) == (Outcome.STOPPED, Action.CONTINUE)
    assert request_stop(train.run, attempt, StopKind.TIME_LIMIT, "the time limit is near")
    assert read_stop_request(attempt).reason is StopKind.TIME_LIMIT


def test_end_of_the_task_while_the_next_start_is_prepared_prevents_it(train: QueuedTrain) -> None:
    guard = make_guard(train)
    train.start_attempt(guard.attempt.name)
    assert guard.may_restart
    guard.stopping.on_signal(signal.SIGTERM)
    assert not guard.may_restart


def test_job_that_completes_has_lost_no_node(train: QueuedTrain) -> None:
    attempt = train.start_attempt("12_1.0", nodes="node[001-002]")
    train.add_row((1,), JobState.COMPLETING, nodes="node002")
    assert find_removed_nodes(train.arrays.slurm, attempt, ENV) == ()
    train.queue.rows[-1] = replace(train.queue.rows[-1], state=JobState.RUNNING)
    assert find_removed_nodes(train.arrays.slurm, attempt, ENV) == ("node001",)


class SlowNode:
    """A runner of steps that reach the second node from the given step on."""

    def __init__(self, first: int) -> None:
        self.first, self.steps = first, 0

    def run(self, argv: tuple[str, ...], **_: object) -> Completed:
        self.steps += 1
        reached = self.steps >= self.first
        return Completed(argv=argv, code=0 if reached else 124, out="node001\n" + "node002\n" * reached, err="")


@pytest.mark.parametrize(("first", "lost"), [(1, ()), (2, ()), (9, ("node002",))])
def test_node_is_lost_if_two_steps_do_not_reach_it(first: int, lost: tuple[str, ...]) -> None:
    assert len(lost_node.PROBE_TIMEOUTS_S) >= 2
    assert find_missing_nodes(SlowNode(first), ENV) == lost  # type: ignore[arg-type]  # runs what is given


class ClearNodes:
    """A runner of the step that ends what an attempt left behind. Meanwhile, `act` is called."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def run(self, argv: tuple[str, ...], **_: object) -> Completed:
        self.act()
        return Completed(argv=argv, code=0, out="node001\nnode002\n", err="")


def make_next_start(train: QueuedTrain, guard: Supervisor, act: Callable[[], object] = lambda: None) -> NextStart:
    return NextStart(
        arrays=train.arrays,
        rules=train.rules,
        runner=ClearNodes(act),
        env=ENV,
        attempt=guard.attempt,
        deadline=guard.deadline,
        wait=RepairWait(train.arrays, guard.attempt, guard._is_stopped, lambda: None),
        left_out=(),
    )


@pytest.mark.parametrize("switch", Switch)
def test_switch_that_is_armed_while_the_nodes_are_cleared_is_obeyed(train: QueuedTrain, switch: Switch) -> None:
    guard = make_guard(train)
    attempt = train.start_attempt(guard.attempt.name, nodes="node[001-002]")
    train.add_row((1,), JobState.RUNNING, nodes="node[001-002]")
    train.end_body(attempt, 1)
    ended = finalize(train.arrays, train.rules, attempt)
    next_env = make_next_start(train, guard, lambda: arm(train.run, switch, why="x")).prepare(ended)
    is_final = switch in {Switch.KILL, Switch.PAUSE}
    assert (next_env is None, RestartDecided in train.event_kinds()) == (is_final, not is_final)
    waiting = [row.is_held for row in train.queue.waiting]
    assert waiting == {Switch.KILL: [], Switch.PAUSE: [True]}.get(switch, [False])


@pytest.mark.parametrize("is_held_again", [True, False])
def test_hold_after_a_repair_keeps_the_queue_held(train: QueuedTrain, is_held_again: bool) -> None:
    guard = make_guard(train)
    train.arrays.hold(as_written("a fault"))
    train.arrays.journal.append(Edited(revision="1"))
    if is_held_again:
        train.arrays.hold(as_written("by a person"))
    wait = RepairWait(train.arrays, guard.attempt, lambda: False, lambda: None)
    assert wait.await_repair(60, ["node001"], 0)
    assert [row.is_held for row in train.queue.waiting] == [is_held_again]


@pytest.mark.parametrize("has_lost_nodes", [True, False])
def test_queued_tasks_of_the_array_wait_after_the_loss_of_a_node(train: QueuedTrain, has_lost_nodes: bool) -> None:
    next_start = make_next_start(train, make_guard(train))
    later = replace(train.queue.rows[0], id="14", array="14", comment="opsctl:gpt:n1")
    train.queue.rows.append(later)
    train.add_row((1,), JobState.RUNNING, nodes="node[001-002]")
    assert next_start._find_other_task(has_lost_nodes=has_lost_nodes) == ""
    assert train.queue.delayed == (["12"] if has_lost_nodes else [])
    train.add_row((2,), JobState.RUNNING, nodes="node003")
    assert next_start._find_other_task(has_lost_nodes=has_lost_nodes) == "12_2"
