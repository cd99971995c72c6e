"""Settlement: once, by anyone, whatever killed it before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from opsctl.errors import OpsctlError, Unreachable
from opsctl.guard.attempt_record import newest_checkpoint
from opsctl.guard.finalize import settle, settle_ended, unsettled
from opsctl.guard.outcome import Action, Outcome
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import Job, JobState
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir
from opsctl.trainer.contract import StopReason, TrainerStop, to_json
from tests.support.finalized_trains import World

Write = Callable[[str], None]


def test_a_finished_train_has_what_is_queued_cancelled(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.FINISHED)
    settled = settle(world.chain, world.rules, life)
    assert (settled.outcome, settled.action) == (Outcome.FINISHED, Action.CANCEL_QUEUED)
    assert world.queue.waiting == []
    assert world.end(life)["outcome"] == "finished"
    assert world.kinds()[-2:] == [EventKind.CANCELLED, EventKind.LIFE_SETTLED]


def test_a_paused_train_has_what_is_queued_held(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.PAUSE)
    settle(world.chain, world.rules, life)
    assert all(job.is_held for job in world.queue.waiting)


def test_a_life_that_goes_on_asks_slurm_nothing(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.DEADLINE)
    settle(world.chain, world.rules, life)
    assert world.queue.calls == []


def test_a_second_settlement_does_nothing_and_says_the_same(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.FINISHED)
    first = settle(world.chain, world.rules, life)
    calls, events = list(world.queue.calls), world.kinds()
    world.exited(life, 1)
    assert settle(world.chain, world.rules, life) == first
    assert (world.queue.calls, world.kinds()) == (calls, events)


@pytest.mark.parametrize("calls", range(4))
def test_a_settlement_that_slurm_cut_off_is_done_by_whoever_comes_next(world: World, calls: int) -> None:
    life = world.began()
    world.left(life, TrainerStop.FINISHED)
    world.queue.breaks_after = calls
    if calls < 2:
        with pytest.raises(Unreachable):
            settle(world.chain, world.rules, life)
        assert unsettled(world.run, world.chain.check([])) == [life]
    world.queue.breaks_after = None
    settle(world.chain, world.rules, life)
    assert world.queue.waiting == []
    assert world.kinds().count(EventKind.LIFE_SETTLED) == 1


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.mark.parametrize("reason", [TrainerStop.FINISHED, TrainerStop.PAUSE])
@pytest.mark.parametrize("writes", range(3))
def test_a_settlement_killed_before_any_of_its_writes_is_finished_once(
    world: World, monkeypatch: pytest.MonkeyPatch, writes: int, reason: TrainerStop
) -> None:
    life = world.began()
    world.left(life, reason)
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
            settle(world.chain, world.rules, life)
    assert not life.end.exists()
    settle(world.chain, world.rules, life)
    assert world.kinds().count(EventKind.LIFE_SETTLED) == 1
    assert world.end(life)["outcome"] == {"finished": "finished", "pause": "paused"}[reason]
    if reason is TrainerStop.PAUSE:
        assert all(job.is_held for job in world.queue.waiting)
    else:
        assert world.queue.waiting == []


def test_two_who_settle_at_once_settle_once(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.FINISHED)
    told = []

    class Meanwhile(type(world.queue)):  # type: ignore[misc]  # the fixture's own class
        def jobs(self) -> list[Job]:
            try:
                settle(world.chain, world.rules, life)
            except OpsctlError as error:
                told.append(error.message)
            return super().jobs()  # type: ignore[no-any-return]  # a list of jobs

    other = Meanwhile(rows=world.queue.rows)
    settle(TrainArrays(run=world.run, journal=world.chain.journal, scheduler=other), world.rules, life)
    assert told and "has been writing here for 10 s" in told[0]
    assert world.kinds().count(EventKind.LIFE_SETTLED) == 1


def crash(world: World, life: str) -> Outcome:
    began = world.began(life, checkpoint=newest_checkpoint(world.run))
    world.exited(began, 1)
    return settle(world.chain, world.rules, began).outcome


def test_the_third_short_crash_holds_what_is_queued_and_says_why(world: World) -> None:
    for number in (1, 2):
        assert crash(world, f"12_{number}.0") is Outcome.CRASHED
        assert not any(job.is_held for job in world.queue.waiting)
    crash(world, "12_3.0")
    assert all(job.is_held for job in world.queue.waiting)
    held = [event for event in world.chain.journal.events() if event.kind is EventKind.HELD]
    assert [event.data["why"] for event in held] == [
        "the body exited with 1; 3 lives in a row under 20 min without a new checkpoint: "
        "12_1.0 crashed, 12_2.0 crashed, 12_3.0 crashed"
    ]


def test_a_checkpoint_between_crashes_lets_the_train_go_on(world: World, checkpoint: Write) -> None:
    crash(world, "12_1.0")
    began = world.began("12_2.0", checkpoint=newest_checkpoint(world.run))
    checkpoint("step-1")
    world.exited(began, 1)
    settle(world.chain, world.rules, began)
    crash(world, "12_3.0")
    assert not any(job.is_held for job in world.queue.waiting)


@pytest.mark.parametrize(
    ("kind", "data"), [(EventKind.RELEASED, {"jobs": ["12"]}), (EventKind.EDITED, {"revision": 1})]
)  # fmt: skip
def test_after_somebody_looked_crashes_are_counted_anew(world: World, kind: EventKind, data: dict[str, object]) -> None:
    for number in (1, 2, 3):
        crash(world, f"12_{number}.0")
    world.chain.release()
    world.chain.journal.append(kind, **data)
    crash(world, "12_4.0")
    assert not any(job.is_held for job in world.queue.waiting)


def test_lives_count_in_the_order_in_which_they_began_not_by_index(world: World, checkpoint: Write) -> None:
    began = world.began("12_9.0", checkpoint=newest_checkpoint(world.run))
    checkpoint("step-1")
    world.exited(began, 1)
    settle(world.chain, world.rules, began)
    for life in ("12_1.1", "12_2.0"):
        crash(world, life)
    assert not any(job.is_held for job in world.queue.waiting)
    crash(world, "12_1.2")
    assert all(job.is_held for job in world.queue.waiting)


def test_a_train_that_was_launched_again_is_not_cancelled_for_an_old_life(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.KILL)
    world.clock.sleep(600)
    world.chain.journal.append(EventKind.SUBMITTED, nonce="n2", array="30")
    settled = settle(world.chain, world.rules, life)
    assert (settled.outcome, settled.action) == (Outcome.KILLED, Action.CONTINUE)
    assert settled.why == "the trainer left at step 40 (kill); launched or released again since"


def test_a_trainer_whose_clock_is_years_off_is_not_overtaken_by_its_own_launch(world: World) -> None:
    life = world.began()
    life.stop_reason.write_text(to_json(StopReason(reason=TrainerStop.FINISHED, step=40, at=1.0)))
    assert settle(world.chain, world.rules, life).action is Action.CANCEL_QUEUED


def test_a_train_that_was_released_is_not_held_again_for_an_old_pause(world: World) -> None:
    life = world.began()
    world.left(life, TrainerStop.PAUSE)
    world.clock.sleep(600)
    world.chain.release()
    assert settle(world.chain, world.rules, life).action is Action.CONTINUE


def test_a_life_that_slurm_still_runs_is_left_alone(world: World) -> None:
    world.began()
    world.row((1,), JobState.RUNNING)
    assert settle_ended(world.chain, world.rules, world.chain.check()) == []


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN])
def test_a_life_that_may_still_run_is_left_alone(world: World, state: JobState) -> None:
    world.began()
    world.row((1,), state)
    assert settle_ended(world.chain, world.rules, world.chain.check()) == []


def test_a_life_whose_node_died_is_settled_by_slurms_word(world: World) -> None:
    world.began()
    world.row((1,), JobState.NODE_FAIL, end=world.clock.now() + timedelta(minutes=5))
    [settled] = settle_ended(world.chain, world.rules, world.chain.check())
    assert (settled.outcome, settled.minutes) == (Outcome.NODE_FAILED, 5)


def test_a_requeued_job_ends_its_earlier_life_but_says_nothing_of_it(world: World) -> None:
    world.began("12_1.0")
    world.row((1,), JobState.RUNNING, restarts=1)
    [settled] = settle_ended(world.chain, world.rules, world.chain.check())
    assert settled.outcome is Outcome.LOST


def test_accounting_knows_how_each_life_of_a_requeued_job_ended(world: World) -> None:
    world.began("12_1.0")
    world.began("12_1.1")
    world.row((1,), JobState.PENDING, restarts=2)
    world.queue.history = [
        Job(id="13", array="12", tasks=(1,), name="gpt", user="me", state=state, restarts=restart)
        for restart, state in enumerate((JobState.PREEMPTED, JobState.TIMEOUT, JobState.PENDING))
    ]
    settled = settle_ended(world.chain, world.rules, world.chain.check())
    assert [each.outcome for each in settled] == [Outcome.PREEMPTED, Outcome.TIMED_OUT]


def test_a_life_that_nobody_remembers_is_lost_and_the_train_goes_on(world: World) -> None:
    world.began()
    [settled] = settle_ended(world.chain, world.rules, world.chain.check())
    assert (settled.outcome, settled.action) == (Outcome.LOST, Action.CONTINUE)


def test_a_life_that_ran_without_a_guard_is_settled_too(world: World) -> None:
    life = world.run.life("12_1.0")
    life.path.mkdir()
    life.body_exit.write_text("7\n")
    [settled] = settle_ended(world.chain, world.rules, world.chain.check())
    assert (settled.life, settled.outcome) == ("12_1.0", Outcome.CRASHED)


def test_a_directory_that_is_no_life_is_passed_over(world: World) -> None:
    (world.run.path / "lives" / "12_1.0.before-20260301T120000").mkdir()
    assert unsettled(world.run, world.chain.check()) == []


def test_a_life_under_an_id_that_was_used_before_is_settled_anew(world: World) -> None:
    world.exited(first := world.began(), 1)
    settle(world.chain, world.rules, first)
    world.clock.sleep(60)
    second = world.began()
    assert not second.end.exists()
    world.left(second, TrainerStop.FINISHED)
    assert settle(world.chain, world.rules, second).outcome is Outcome.FINISHED


def test_a_stronger_wish_replaces_a_weaker_one_and_never_the_other_way_round(world: World) -> None:
    life = world.began()
    assert request_stop(world.run, life, StopKind.TIME_LIMIT, "near")
    assert request_stop(world.run, life, StopKind.KILL, "by alice")
    assert not request_stop(world.run, life, StopKind.PAUSE, "by bob")
    world.exited(life, 0)
    assert settle(world.chain, world.rules, life).why == "by alice"
