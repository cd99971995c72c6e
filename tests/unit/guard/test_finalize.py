"""Settlement: once, by anyone, whatever killed it before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from opsctl.errors import OpsctlError, Unreachable
from opsctl.guard.attempt_record import find_newest_checkpoint
from opsctl.guard.finalize import finalize, finalize_ended, find_unfinalized
from opsctl.guard.outcome import Action, Outcome
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import Job, JobState
from opsctl.state.journal import EventKind, Journal, actor
from opsctl.state.run_dir import RunDir
from opsctl.trainer.contract import StopReason, TrainerStop, to_json
from tests.support.finalized_trains import World

Write = Callable[[str], None]


def test_a_finished_train_has_what_is_queued_cancelled(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.FINISHED)
    finalized = finalize(world.chain, world.rules, attempt)
    assert (finalized.outcome, finalized.action) == (Outcome.FINISHED, Action.CANCEL_QUEUED)
    assert world.queue.waiting == []
    assert world.end(attempt)["outcome"] == "finished"
    assert world.kinds()[-2:] == [EventKind.CANCELLED, EventKind.ATTEMPT_FINALIZED]


def test_a_paused_train_has_what_is_queued_held(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.PAUSE)
    finalize(world.chain, world.rules, attempt)
    assert all(job.is_held for job in world.queue.waiting)


def test_a_attempt_that_goes_on_asks_slurm_nothing(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.DEADLINE)
    finalize(world.chain, world.rules, attempt)
    assert world.queue.calls == []


def test_a_second_finalization_does_nothing_and_says_the_same(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.FINISHED)
    first = finalize(world.chain, world.rules, attempt)
    calls, events = list(world.queue.calls), world.kinds()
    world.exited(attempt, 1)
    assert finalize(world.chain, world.rules, attempt) == first
    assert (world.queue.calls, world.kinds()) == (calls, events)


@pytest.mark.parametrize("calls", range(4))
def test_a_finalization_that_slurm_cut_off_is_done_by_whoever_comes_next(world: World, calls: int) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.FINISHED)
    world.queue.breaks_after = calls
    if calls < 2:
        with pytest.raises(Unreachable):
            finalize(world.chain, world.rules, attempt)
        assert find_unfinalized(world.run, world.chain.check([])) == [attempt]
    world.queue.breaks_after = None
    finalize(world.chain, world.rules, attempt)
    assert world.queue.waiting == []
    assert world.kinds().count(EventKind.ATTEMPT_FINALIZED) == 1


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.mark.parametrize("reason", [TrainerStop.FINISHED, TrainerStop.PAUSE])
@pytest.mark.parametrize("writes", range(3))
def test_a_finalization_killed_before_any_of_its_writes_is_finished_once(
    world: World, monkeypatch: pytest.MonkeyPatch, writes: int, reason: TrainerStop
) -> None:
    attempt = world.began()
    world.left(attempt, reason)
    left = writes

    def dies(original: Callable[..., object]) -> Callable[..., object]:
        def write(*args: object, **kwargs: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return original(*args, **kwargs)

        return write

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", dies(Journal.append))
        patched.setattr(RunDir, "write", dies(RunDir.write))
        with pytest.raises(Killed):
            finalize(world.chain, world.rules, attempt)
    assert not attempt.end.exists()
    finalize(world.chain, world.rules, attempt)
    assert world.kinds().count(EventKind.ATTEMPT_FINALIZED) == 1
    assert world.end(attempt)["outcome"] == {"finished": "finished", "pause": "paused"}[reason]
    if reason is TrainerStop.PAUSE:
        assert all(job.is_held for job in world.queue.waiting)
    else:
        assert world.queue.waiting == []


def test_two_who_finalize_at_once_finalize_once(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.FINISHED)
    told = []

    class Meanwhile(type(world.queue)):  # type: ignore[misc]  # the fixture's own class
        def jobs(self) -> list[Job]:
            try:
                finalize(world.chain, world.rules, attempt)
            except OpsctlError as error:
                told.append(error.message)
            return super().jobs()  # type: ignore[no-any-return]  # a list of jobs

    other = Meanwhile(rows=world.queue.rows)
    finalize(TrainArrays(run=world.run, journal=world.chain.journal, scheduler=other), world.rules, attempt)
    assert told and "has been writing here for 10 s" in told[0]
    assert world.kinds().count(EventKind.ATTEMPT_FINALIZED) == 1


def crash(world: World, attempt: str) -> Outcome:
    began = world.began(attempt, checkpoint=find_newest_checkpoint(world.run))
    world.exited(began, 1)
    return finalize(world.chain, world.rules, began).outcome


def test_the_third_short_crash_holds_what_is_queued_and_says_why(world: World) -> None:
    for number in (1, 2):
        assert crash(world, f"12_{number}.0") is Outcome.CRASHED
        assert not any(job.is_held for job in world.queue.waiting)
    crash(world, "12_3.0")
    assert all(job.is_held for job in world.queue.waiting)
    held = [event for event in world.chain.journal.events() if event.kind is EventKind.HELD]
    assert [event.data["why"] for event in held] == [
        "the body exited with 1; 3 attempts in a row under 20 min without a new checkpoint: "
        "12_1.0 crashed, 12_2.0 crashed, 12_3.0 crashed"
    ]


def test_a_checkpoint_between_crashes_lets_the_train_go_on(world: World, checkpoint: Write) -> None:
    crash(world, "12_1.0")
    began = world.began("12_2.0", checkpoint=find_newest_checkpoint(world.run))
    checkpoint("step-1")
    world.exited(began, 1)
    finalize(world.chain, world.rules, began)
    crash(world, "12_3.0")
    assert not any(job.is_held for job in world.queue.waiting)


@pytest.mark.parametrize(
    ("kind", "data"), [(EventKind.RELEASED, {"jobs": ["12"]}), (EventKind.EDITED, {"revision": 1})]
)
def test_after_somebody_looked_crashes_are_counted_anew(world: World, kind: EventKind, data: dict[str, object]) -> None:
    for number in (1, 2, 3):
        crash(world, f"12_{number}.0")
    world.chain.release()
    world.chain.journal.append(kind, **data)
    crash(world, "12_4.0")
    assert not any(job.is_held for job in world.queue.waiting)


def test_attempts_count_in_the_order_in_which_they_began_not_by_index(world: World, checkpoint: Write) -> None:
    began = world.began("12_9.0", checkpoint=find_newest_checkpoint(world.run))
    checkpoint("step-1")
    world.exited(began, 1)
    finalize(world.chain, world.rules, began)
    for attempt in ("12_1.1", "12_2.0"):
        crash(world, attempt)
    assert not any(job.is_held for job in world.queue.waiting)
    crash(world, "12_1.2")
    assert all(job.is_held for job in world.queue.waiting)


def test_a_train_that_was_launched_again_is_not_cancelled_for_an_old_attempt(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.KILL)
    world.clock.sleep(600)
    world.chain.journal.append(EventKind.SUBMITTED, nonce="n2", array="30")
    finalized = finalize(world.chain, world.rules, attempt)
    assert (finalized.outcome, finalized.action) == (Outcome.KILLED, Action.CONTINUE)
    assert finalized.why == "the trainer stopped at step 40 (kill); launched or released again since"


def test_a_trainer_whose_clock_is_years_off_is_not_overtaken_by_its_own_launch(world: World) -> None:
    attempt = world.began()
    attempt.stop_reason.write_text(to_json(StopReason(reason=TrainerStop.FINISHED, step=40, at=1.0)))
    assert finalize(world.chain, world.rules, attempt).action is Action.CANCEL_QUEUED


def test_a_train_that_was_released_is_not_held_again_for_an_old_pause(world: World) -> None:
    attempt = world.began()
    world.left(attempt, TrainerStop.PAUSE)
    world.clock.sleep(600)
    world.chain.release()
    assert finalize(world.chain, world.rules, attempt).action is Action.CONTINUE


def test_a_attempt_that_slurm_still_runs_is_left_alone(world: World) -> None:
    world.began()
    world.row((1,), JobState.RUNNING)
    assert finalize_ended(world.chain, world.rules, world.chain.check()) == []


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN])
def test_a_attempt_that_may_still_run_is_left_alone(world: World, state: JobState) -> None:
    world.began()
    world.row((1,), state)
    assert finalize_ended(world.chain, world.rules, world.chain.check()) == []


def test_a_attempt_whose_node_died_is_finalized_by_slurms_word(world: World) -> None:
    world.began()
    world.row((1,), JobState.NODE_FAIL, end=world.clock.now() + timedelta(minutes=5))
    [finalized] = finalize_ended(world.chain, world.rules, world.chain.check())
    assert (finalized.outcome, finalized.minutes) == (Outcome.NODE_FAILED, 5)


def test_a_requeued_job_ends_its_earlier_attempt_but_says_nothing_of_it(world: World) -> None:
    world.began("12_1.0")
    world.row((1,), JobState.RUNNING, restarts=1)
    [finalized] = finalize_ended(world.chain, world.rules, world.chain.check())
    assert finalized.outcome is Outcome.LOST


def test_accounting_knows_how_each_attempt_of_a_requeued_job_ended(world: World) -> None:
    world.began("12_1.0")
    world.began("12_1.1")
    world.row((1,), JobState.PENDING, restarts=2)
    world.queue.history = [
        Job(id="13", array="12", tasks=(1,), name="gpt", user=actor(), state=state, restarts=restart)
        for restart, state in enumerate((JobState.PREEMPTED, JobState.TIMEOUT, JobState.PENDING))
    ]
    finalized = finalize_ended(world.chain, world.rules, world.chain.check())
    assert [finished.outcome for finished in finalized] == [Outcome.PREEMPTED, Outcome.TIMED_OUT]


def test_a_attempt_that_nobody_remembers_is_lost_and_the_train_goes_on(world: World) -> None:
    world.began()
    [finalized] = finalize_ended(world.chain, world.rules, world.chain.check())
    assert (finalized.outcome, finalized.action) == (Outcome.LOST, Action.CONTINUE)


def test_a_attempt_that_ran_without_a_guard_is_finalized_too(world: World) -> None:
    attempt = world.run.attempt("12_1.0")
    attempt.path.mkdir()
    attempt.body_exit.write_text("7\n")
    [finalized] = finalize_ended(world.chain, world.rules, world.chain.check())
    assert (finalized.attempt, finalized.outcome) == ("12_1.0", Outcome.CRASHED)


def test_a_directory_that_is_no_attempt_is_passed_over(world: World) -> None:
    (world.run.path / "attempts" / "12_1.0.before-20260301T120000").mkdir()
    assert find_unfinalized(world.run, world.chain.check()) == []


def test_a_attempt_under_an_id_that_was_used_before_is_finalized_anew(world: World) -> None:
    world.exited(first := world.began(), 1)
    finalize(world.chain, world.rules, first)
    world.clock.sleep(60)
    second = world.began()
    assert not second.end.exists()
    world.left(second, TrainerStop.FINISHED)
    assert finalize(world.chain, world.rules, second).outcome is Outcome.FINISHED


def test_a_stronger_wish_replaces_a_weaker_one_and_never_the_other_way_round(world: World) -> None:
    attempt = world.began()
    assert request_stop(world.run, attempt, StopKind.TIME_LIMIT, "near")
    assert request_stop(world.run, attempt, StopKind.KILL, "by alice")
    assert not request_stop(world.run, attempt, StopKind.PAUSE, "by bob")
    world.exited(attempt, 0)
    assert finalize(world.chain, world.rules, attempt).why == "by alice"
