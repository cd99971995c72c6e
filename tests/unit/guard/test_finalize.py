"""Finalize: exactly once, by any process, after any interruption."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job, JobState
from opsctl.guard.attempt_record import claim_attempt, find_newest_checkpoint, read_start
from opsctl.guard.end_record import Action, Outcome
from opsctl.guard.finalize import finalize, finalize_ended
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.guard.unfinalized import list_unfinalized
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.events import AttemptFinalized, Cancelled, Diagnosed, Edited, Event, Held, HoldReleased, Submitted
from opsctl.state.journal import actor
from opsctl.trainer.contract import StopReason, TrainerStop, to_json
from tests.support.finalized_trains import QueuedTrain, killed_after

Write = Callable[[str], None]


def test_finished_train_cancels_queued_tasks(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.FINISHED)
    finalized = finalize(train.arrays, train.rules, attempt)
    assert (finalized.outcome, finalized.action) == (Outcome.FINISHED, Action.CANCEL_QUEUED)
    assert train.queue.waiting == []
    assert train.end(attempt)["outcome"] == "finished"
    assert train.event_kinds()[-2:] == [Cancelled, AttemptFinalized]


def test_paused_train_holds_queued_tasks(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.PAUSE)
    finalize(train.arrays, train.rules, attempt)
    assert all(job.is_held for job in train.queue.waiting)


def test_continuing_train_asks_slurm_nothing(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.DEADLINE)
    finalize(train.arrays, train.rules, attempt)
    assert train.queue.calls == []


def test_second_finalize_returns_the_same_result(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.FINISHED)
    first = finalize(train.arrays, train.rules, attempt)
    calls, events = list(train.queue.calls), train.event_kinds()
    train.end_body(attempt, 1)
    assert finalize(train.arrays, train.rules, attempt) == first
    assert (train.queue.calls, train.event_kinds()) == (calls, events)


@pytest.mark.parametrize("calls", range(4))
def test_finalize_interrupted_by_slurm_is_repeated(train: QueuedTrain, calls: int) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.FINISHED)
    train.queue.breaks_after = calls
    if calls < 2:
        with pytest.raises(Unreachable):
            finalize(train.arrays, train.rules, attempt)
        assert list_unfinalized(train.run, train.arrays.check([]).history) == [attempt]
    train.queue.breaks_after = None
    finalize(train.arrays, train.rules, attempt)
    assert train.queue.waiting == []
    assert train.event_kinds().count(AttemptFinalized) == 1


@pytest.mark.parametrize("reason", [TrainerStop.FINISHED, TrainerStop.PAUSE])
@pytest.mark.parametrize("writes", range(3))
def test_finalize_killed_before_a_write_is_completed_once(train: QueuedTrain, writes: int, reason: TrainerStop) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, reason)
    with killed_after(writes):
        finalize(train.arrays, train.rules, attempt)
    assert not attempt.end.exists()
    finalize(train.arrays, train.rules, attempt)
    assert train.event_kinds().count(AttemptFinalized) == 1
    assert train.end(attempt)["outcome"] == {"finished": "finished", "pause": "paused"}[reason]
    if reason is TrainerStop.PAUSE:
        assert all(job.is_held for job in train.queue.waiting)
    else:
        assert train.queue.waiting == []


def test_concurrent_finalize_happens_once(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.FINISHED)
    messages = []

    class ConcurrentQueue(type(train.queue)):  # type: ignore[misc]  # the fixture's own class
        def jobs(self) -> list[Job]:
            try:
                finalize(train.arrays, train.rules, attempt)
            except OpsctlError as error:
                messages.append(error.message)
            return super().jobs()  # type: ignore[no-any-return]  # a list of jobs

    queue = ConcurrentQueue(rows=train.queue.rows)
    finalize(TrainArrays(run=train.run, journal=train.arrays.journal, slurm=queue), train.rules, attempt)
    assert messages and "has been writing here for 10 s" in messages[0]
    assert train.event_kinds().count(AttemptFinalized) == 1


def crash(train: QueuedTrain, attempt: str) -> Outcome:
    began = train.start_attempt(attempt, checkpoint=find_newest_checkpoint(train.run))
    train.end_body(began, 1)
    return finalize(train.arrays, train.rules, began).outcome


def test_third_short_crash_holds_queued_tasks(train: QueuedTrain) -> None:
    for number in (1, 2):
        assert crash(train, f"12_{number}.0") is Outcome.CRASHED
        assert not any(job.is_held for job in train.queue.waiting)
    crash(train, "12_3.0")
    assert all(job.is_held for job in train.queue.waiting)
    held = [event for event in train.arrays.journal.events() if isinstance(event, Held)]
    assert [str(event.reason) for event in held] == [
        "the body exited with 1; 3 attempts in a row under 20 min without progress: "
        "12_1.0 crashed, 12_2.0 crashed, 12_3.0 crashed; neither steps nor checkpoints are known: [progress] of "
        "TRAIN.toml describes them; before a release, find and remove the cause (opsctl why)"
    ]


def test_checkpoint_between_crashes_resets_the_count(train: QueuedTrain, checkpoint: Write) -> None:
    crash(train, "12_1.0")
    began = train.start_attempt("12_2.0", checkpoint=find_newest_checkpoint(train.run))
    checkpoint("step-1")
    train.end_body(began, 1)
    finalize(train.arrays, train.rules, began)
    crash(train, "12_3.0")
    assert not any(job.is_held for job in train.queue.waiting)


@pytest.mark.parametrize("event", [HoldReleased(jobs=("12",)), Edited(revision="1")])
def test_release_or_edit_resets_the_count(train: QueuedTrain, event: Event) -> None:
    for number in (1, 2, 3):
        crash(train, f"12_{number}.0")
    train.arrays.release()
    train.arrays.journal.append(event)
    crash(train, "12_4.0")
    assert not any(job.is_held for job in train.queue.waiting)


def test_attempts_are_ordered_by_their_start(train: QueuedTrain, checkpoint: Write) -> None:
    began = train.start_attempt("12_9.0", checkpoint=find_newest_checkpoint(train.run))
    checkpoint("step-1")
    train.end_body(began, 1)
    finalize(train.arrays, train.rules, began)
    for attempt in ("12_1.1", "12_2.0"):
        crash(train, attempt)
    assert not any(job.is_held for job in train.queue.waiting)
    crash(train, "12_1.2")
    assert all(job.is_held for job in train.queue.waiting)


def test_relaunched_train_is_not_cancelled_for_an_old_attempt(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.KILL)
    train.clock.sleep(600)
    train.arrays.journal.append(Submitted(nonce="n2", array="30"))
    finalized = finalize(train.arrays, train.rules, attempt)
    assert (finalized.outcome, finalized.action) == (Outcome.KILLED, Action.CONTINUE)
    assert finalized.why == "the trainer stopped at step 40 (kill); launched or released again since"


def test_wrong_clock_of_the_trainer_is_tolerated(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    attempt.stop_reason.write_text(to_json(StopReason(reason=TrainerStop.FINISHED, step=40, at=1.0)))
    assert finalize(train.arrays, train.rules, attempt).action is Action.CANCEL_QUEUED


def test_released_train_is_not_held_for_an_old_pause(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.PAUSE)
    train.clock.sleep(600)
    train.arrays.release()
    assert finalize(train.arrays, train.rules, attempt).action is Action.CONTINUE


def test_running_attempt_is_left_alone(train: QueuedTrain) -> None:
    train.start_attempt()
    train.add_row((1,), JobState.RUNNING)
    assert finalize_ended(train.arrays, train.rules, train.arrays.check()) == []


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN])
def test_attempt_in_an_uncertain_state_is_left_alone(train: QueuedTrain, state: JobState) -> None:
    train.start_attempt()
    train.add_row((1,), state)
    assert finalize_ended(train.arrays, train.rules, train.arrays.check()) == []


def test_attempt_on_a_failed_node_is_finalized(train: QueuedTrain) -> None:
    train.start_attempt()
    train.add_row((1,), JobState.NODE_FAIL, end=train.clock.now() + timedelta(minutes=5))
    [finalized] = finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert (finalized.outcome, finalized.minutes) == (Outcome.NODE_FAILED, 5)


def test_requeued_attempt_without_accounting_is_lost(train: QueuedTrain) -> None:
    train.start_attempt("12_1.0")
    train.add_row((1,), JobState.RUNNING, restarts=1)
    [finalized] = finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert finalized.outcome is Outcome.LOST


def test_accounting_supplies_ends_of_requeued_attempts(train: QueuedTrain) -> None:
    train.start_attempt("12_1.0")
    train.start_attempt("12_1.1")
    train.add_row((1,), JobState.PENDING, restarts=2)
    train.queue.history = [
        Job(id="13", array="12", tasks=(1,), name="gpt", user=actor(), state=state, restarts=restart)
        for restart, state in enumerate((JobState.PREEMPTED, JobState.TIMEOUT, JobState.PENDING))
    ]
    finalized = finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert [finished.outcome for finished in finalized] == [Outcome.PREEMPTED, Outcome.TIMED_OUT]


def test_attempt_without_any_record_is_lost(train: QueuedTrain) -> None:
    train.start_attempt()
    [finalized] = finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert (finalized.outcome, finalized.action) == (Outcome.LOST, Action.CONTINUE)


def test_attempt_without_a_guard_is_finalized(train: QueuedTrain) -> None:
    attempt = train.run.attempt("12_1.0")
    attempt.path.mkdir()
    attempt.body_exit.write_text("7\n")
    [finalized] = finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert (finalized.attempt, finalized.outcome) == ("12_1.0", Outcome.CRASHED)


def test_directory_of_another_name_is_ignored(train: QueuedTrain) -> None:
    (train.run.path / "attempts" / "12_1.0.before-20260301T120000").mkdir()
    assert list_unfinalized(train.run, train.arrays.check().history) == []


def test_every_start_of_a_task_has_an_attempt_of_its_own(train: QueuedTrain) -> None:
    """Slurm may start a task twice without counting, and a killed controller uses job ids again."""
    env = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"}
    first = train.start_attempt(claim_attempt(train.run, env).name)
    train.end_body(first, 1)
    finalize(train.arrays, train.rules, first)
    second = train.start_attempt(claim_attempt(train.run, env).name)
    assert (first.name, second.name, first.has_successor) == ("12_1.0", "12_1.1", True)
    train.stop_trainer(second, TrainerStop.FINISHED)
    assert finalize(train.arrays, train.rules, second).outcome is Outcome.FINISHED


def test_stronger_stop_request_replaces_a_weaker_one(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    assert request_stop(train.run, attempt, StopKind.TIME_LIMIT, "near")
    assert request_stop(train.run, attempt, StopKind.KILL, "by alice")
    assert not request_stop(train.run, attempt, StopKind.PAUSE, "by bob")
    train.end_body(attempt, 0)
    assert finalize(train.arrays, train.rules, attempt).why == "by alice"


def test_start_record_keeps_the_time_of_a_checkpoint(train):
    """The mark of a checkpoint whose name has no step is a time in nanoseconds."""
    attempt = train.start_attempt("12_1.0", checkpoint=time.time_ns())
    start = read_start(attempt)
    assert start is not None
    assert start.nodes


@pytest.mark.parametrize(("nodes", "is_headless"), [("node002", True), ("node[001-002]", False), ("", False)])
def test_task_whose_guard_is_gone_with_its_node_is_cancelled(train: QueuedTrain, nodes: str, is_headless: bool) -> None:
    """Slurm may leave a job running that has lost its first node: nothing supervises it any more."""
    train.start_attempt("12_1.0", nodes="node[001-002]")
    train.add_row((1,), JobState.RUNNING, nodes=nodes)
    finalize_ended(train.arrays, train.rules, train.arrays.check())
    assert ("cancel" in train.queue.calls) is is_headless


def test_nodes_that_slurm_has_taken_out_of_the_job_are_lost(train: QueuedTrain) -> None:
    attempt = train.start_attempt("12_1.0", nodes="node[001-002]")
    train.add_row((1,), JobState.CANCELLED, nodes="node002")
    [job] = [row for row in train.queue.rows if row.tasks == (1,)]
    ended = finalize(train.arrays, train.rules, attempt, job=job)
    assert (ended.outcome, ended.suspects) == (Outcome.NODE_FAILED, ("node001",))


@pytest.mark.parametrize(("stop", "cause"), [(TrainerStop.STOP_REQUEST, "node-failure"), (TrainerStop.NAN, "end")])
def test_stop_by_slurm_s_signal_after_a_node_failure_is_no_cause(
    train: QueuedTrain, stop: TrainerStop, cause: str
) -> None:
    attempt = train.start_attempt("12_1.0", nodes="node[001-002]")
    train.run.main_log.write_text("srun: error: Node failure on node002\n")
    train.stop_trainer(attempt, stop)
    train.end_body(attempt, 143)
    train.add_row((1,), JobState.NODE_FAIL)
    finalize(train.arrays, train.rules, attempt, job=train.queue.rows[-1])
    assert [event.cause for event in train.arrays.journal.events() if isinstance(event, Diagnosed)] == [cause]
