"""How an attempt ended, and what follows from it."""

from __future__ import annotations

import pytest

from opsctl.guard.outcome import (
    ACTIONS,
    Action,
    Evidence,
    Outcome,
    decide_outcome,
)
from opsctl.guard.stop_request import StopKind, StopRequest
from opsctl.model import JobState
from opsctl.trainer.contract import StopReason, TrainerStop


def left(reason: TrainerStop) -> StopReason:
    return StopReason(reason=reason, step=40, at=0.0)


def asked(reason: StopKind) -> StopRequest:
    return StopRequest(reason=reason, why=f"because of {reason}")


def test_every_outcome_has_its_action() -> None:
    assert set(ACTIONS) == set(Outcome)
    assert {outcome for outcome, action in ACTIONS.items() if action is Action.CANCEL_QUEUED} == {
        Outcome.FINISHED,
        Outcome.KILLED,
    }
    assert {outcome for outcome, action in ACTIONS.items() if action is Action.HOLD_QUEUED} == {
        Outcome.PAUSED,
        Outcome.REFUSED,
    }


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (TrainerStop.FINISHED, Outcome.FINISHED),
        (TrainerStop.KILL, Outcome.KILLED),
        (TrainerStop.PAUSE, Outcome.PAUSED),
        (TrainerStop.STOP_REQUEST, Outcome.STOPPED),
        (TrainerStop.DEADLINE, Outcome.DEADLINE),
        (TrainerStop.MEMORY, Outcome.CRASHED),
        (TrainerStop.NAN, Outcome.CRASHED),
    ],
)
def test_the_trainers_own_word_goes_before_the_exit_code_and_before_slurms(
    reason: TrainerStop, outcome: Outcome
) -> None:
    assert decide_outcome(Evidence(stop=left(reason), code=1, state=JobState.TIMEOUT))[0] is outcome


def test_there_is_a_rule_for_every_reason_a_trainer_can_give() -> None:
    assert all(decide_outcome(Evidence(stop=left(reason)))[0] is not Outcome.LOST for reason in TrainerStop)


@pytest.mark.parametrize("code", [0, 1, 143, None])
@pytest.mark.parametrize(
    ("stop", "outcome"),
    [
        (StopKind.KILL, Outcome.KILLED),
        (StopKind.PAUSE, Outcome.PAUSED),
        (StopKind.REFUSED, Outcome.REFUSED),
        (StopKind.SKIPPED, Outcome.SKIPPED),
        (StopKind.HUNG, Outcome.HUNG),
    ],
)
def test_a_attempt_that_was_stopped_on_purpose_is_what_was_asked_for_however_it_left(
    stop: StopKind, outcome: Outcome, code: int | None
) -> None:
    assert decide_outcome(Evidence(request=asked(stop), code=code)) == (outcome, f"because of {stop}")


def test_a_trainer_that_only_saw_the_stop_request_still_stopped_for_the_kill_switch() -> None:
    evidence = Evidence(stop=left(TrainerStop.STOP_REQUEST), request=asked(StopKind.KILL), code=0)
    assert decide_outcome(evidence)[0] is Outcome.KILLED


@pytest.mark.parametrize(
    ("seen", "outcome", "why"),
    [
        (
            Evidence(code=0),
            Outcome.FINISHED,
            "the body exited with 0; nobody asked for it, and no further step is known",
        ),
        (Evidence(code=0, has_steps_left=True), Outcome.EXITED, "the body exited with 0 before the last iteration"),
        (
            Evidence(code=0, is_near_limit=True),
            Outcome.DEADLINE,
            "the body exited with 0 after most of the task's time",
        ),
        (
            Evidence(code=0, limits_itself=True),
            Outcome.EXITED,
            "the body exited with 0, and the command limits its own time",
        ),
        (
            Evidence(code=0, has_steps_left=True, is_idle_again=True),
            Outcome.FINISHED,
            "the body exited with 0 again, this time without a step",
        ),
        (
            Evidence(code=0, has_steps_left=True, finished_line="Training completed"),
            Outcome.FINISHED,
            "the body exited with 0 after the line: Training completed",
        ),
        (
            Evidence(code=0, finished_line="Training complete", unfinished_line="Run canceled"),
            Outcome.EXITED,
            "the body exited with 0 after the line: Run canceled",
        ),
        (
            Evidence(code=0, on_exit_0="continue", finished_line="Training completed"),
            Outcome.EXITED,
            'the body exited with 0, and on_exit_0 = "continue"',
        ),
        (
            Evidence(code=0, on_exit_0="finish", has_steps_left=True),
            Outcome.FINISHED,
            'the body exited with 0, and on_exit_0 = "finish"',
        ),
        (Evidence(code=7, has_finished_file=True), Outcome.FINISHED, "the trainer wrote TRAIN_FINISHED"),
        (Evidence(code=0, on_exit_0="finish", request=asked(StopKind.TERM)), Outcome.STOPPED, "because of term"),
        (Evidence(code=0, is_last_step=True), Outcome.FINISHED, "the log ends with the last iteration"),
        (Evidence(code=1, is_last_step=True), Outcome.CRASHED, "the body exited with 1"),
        (Evidence(code=85), Outcome.CRASHED, "the body exited with 85"),
        (Evidence(code=0, request=asked(StopKind.TERM)), Outcome.STOPPED, "because of term"),
        (Evidence(code=0, request=asked(StopKind.TIME_LIMIT)), Outcome.STOPPED, "because of time-limit"),
        (
            Evidence(code=0, request=asked(StopKind.TERM), state=JobState.NODE_FAIL),
            Outcome.NODE_FAILED,
            "Slurm reports NODE_FAIL",
        ),
        (
            Evidence(code=143, request=asked(StopKind.KILL), state=JobState.NODE_FAIL),
            Outcome.KILLED,
            "because of kill",
        ),
        (Evidence(code=1, request=asked(StopKind.TIME_LIMIT)), Outcome.CRASHED, "the body exited with 1"),
        (Evidence(code=143, request=asked(StopKind.TERM)), Outcome.CANCELLED, "because of term"),
        (Evidence(code=143, request=asked(StopKind.TERM), at_its_limit=True), Outcome.TIMED_OUT, "because of term"),
        (Evidence(), Outcome.LOST, "the attempt left no exit code, and Slurm does not know its end"),
        (Evidence(is_last_step=True), Outcome.LOST, "the attempt left no exit code, and Slurm does not know its end"),
        (
            Evidence(state=JobState.COMPLETED),
            Outcome.FINISHED,
            "Slurm reports COMPLETED; nobody asked for it, and no further step is known",
        ),
        (
            Evidence(state=JobState.COMPLETED, is_last_step=True),
            Outcome.FINISHED,
            "the log ends with the last iteration",
        ),
        (Evidence(code=137, state=JobState.NODE_FAIL), Outcome.NODE_FAILED, "Slurm reports NODE_FAIL"),
        (Evidence(code=2, state=JobState.FAILED), Outcome.CRASHED, "the body exited with 2"),
        (
            Evidence(code=0, state=JobState.CANCELLED, has_steps_left=True),
            Outcome.EXITED,
            "the body exited with 0 before the last iteration",
        ),
    ],
)
def test_a_attempt_is_judged_by_the_best_evidence_there_is(seen: Evidence, outcome: Outcome, why: str) -> None:
    assert decide_outcome(seen) == (outcome, why)


def test_every_final_state_of_slurm_is_an_outcome_and_no_other_state_is() -> None:
    known = {state for state in JobState if decide_outcome(Evidence(state=state))[0] is not Outcome.LOST}
    assert known == {state for state in JobState if state.is_final}
