"""The outcome of an attempt and the action that follows."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.base.model import JobState
from opsctl.guard.action import ACTIONS
from opsctl.guard.end_record import Action, Outcome
from opsctl.guard.outcome import Evidence, decide_outcome
from opsctl.guard.stop_request import StopKind, StopRequest
from opsctl.trainer.contract import StopReason, TrainerStop


def make_stop(reason: TrainerStop) -> StopReason:
    return StopReason(reason=reason, step=40, at=0.0)


def make_request(reason: StopKind) -> StopRequest:
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
        Outcome.IDLE,
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
def test_reason_of_the_trainer_overrides_exit_code_and_state(reason: TrainerStop, outcome: Outcome) -> None:
    assert decide_outcome(Evidence(stop=make_stop(reason), code=1, state=JobState.TIMEOUT))[0] is outcome


def test_every_stop_reason_has_a_rule() -> None:
    assert all(decide_outcome(Evidence(stop=make_stop(reason)))[0] is not Outcome.LOST for reason in TrainerStop)


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
def test_requested_stop_decides_the_outcome(stop: StopKind, outcome: Outcome, code: int | None) -> None:
    assert decide_outcome(Evidence(request=make_request(stop), code=code)) == (outcome, f"because of {stop}")


def test_kill_switch_overrides_the_stop_request() -> None:
    evidence = Evidence(stop=make_stop(TrainerStop.STOP_REQUEST), request=make_request(StopKind.KILL), code=0)
    assert decide_outcome(evidence)[0] is Outcome.KILLED


@pytest.mark.parametrize(
    ("evidence", "outcome", "why"),
    [
        (
            Evidence(code=0),
            Outcome.FINISHED,
            "the body exited with 0; no stop request and no further step are known",
        ),
        (
            Evidence(code=0, is_idle=True),
            Outcome.FINISHED,
            "the body exited with 0; no stop request and no further step are known;"
            " no step of this attempt is known either",
        ),
        (
            Evidence(code=0, is_idle=True, lacks_signs=True),
            Outcome.IDLE,
            "the body exited with 0, but ended without a step: neither its log nor a checkpoint shows any training;"
            " if the training is over: opsctl cancel; otherwise correct the command (opsctl edit), or describe its"
            " progress in [progress], then release",
        ),
        (
            Evidence(code=0, is_idle_again=True, lacks_signs=True),
            Outcome.FINISHED,
            "the body exited with 0 again, this time without a step",
        ),
        (
            Evidence(code=0, is_idle=True, is_idle_again=True, usage_line="usage: train.py [-h]"),
            Outcome.IDLE,
            "the body exited with 0 and printed its usage: usage: train.py [-h]; correct the command by opsctl edit,"
            " then release",
        ),
        (
            Evidence(code=0, is_idle=True, usage_line="usage: train.py [-h]", on_exit_0="finish"),
            Outcome.FINISHED,
            'the body exited with 0, and on_exit_0 = "finish"',
        ),
        (
            Evidence(code=0, usage_line="usage: train.py [-h]"),
            Outcome.FINISHED,
            "the body exited with 0; no stop request and no further step are known",
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
            Evidence(code=0, was_signalled=True, finished_line="Training complete"),
            Outcome.EXITED,
            "the body exited with 0 after a signal to its ranks",
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
        (Evidence(code=0, on_exit_0="finish", request=make_request(StopKind.TERM)), Outcome.STOPPED, "because of term"),
        (Evidence(code=0, is_last_step=True), Outcome.FINISHED, "the log ends with the last iteration"),
        (Evidence(code=1, is_last_step=True), Outcome.CRASHED, "the body exited with 1"),
        (
            Evidence(code=1, is_last_step=True, is_end_saved=True),
            Outcome.FINISHED,
            "the last iteration is done and saved, before the body exited with 1",
        ),
        (
            Evidence(code=0, is_last_step=True, epochs_left="Epoch 1/10"),
            Outcome.EXITED,
            "the body exited with 0 before the last epoch: Epoch 1/10",
        ),
        (
            Evidence(code=0, is_idle_again=True, failed_line="KeyError: 'lr'"),
            Outcome.EXITED,
            "the body exited with 0, but a program failed: KeyError: 'lr'",
        ),
        (Evidence(code=143, request=make_request(StopKind.TIME_LIMIT)), Outcome.STOPPED, "because of time-limit"),
        (
            Evidence(
                code=1,
                request=make_request(StopKind.TIME_LIMIT),
                was_signalled=True,
                unfinished_line="Received SIGTERM",
            ),
            Outcome.STOPPED,
            "because of time-limit",
        ),
        (Evidence(code=138, request=make_request(StopKind.TIME_LIMIT)), Outcome.STOPPED, "because of time-limit"),
        (Evidence(code=85), Outcome.CRASHED, "the body exited with 85"),
        (
            Evidence(code=1, cancelled_line="STEP 4.0 CANCELLED AT T"),
            Outcome.CANCELLED,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T)",
        ),
        (
            Evidence(code=1, cancelled_line="STEP 4.0 CANCELLED AT T DUE TO PREEMPTION"),
            Outcome.PREEMPTED,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T DUE TO PREEMPTION)",
        ),
        (
            Evidence(
                code=1,
                cancelled_line="STEP 4.0 CANCELLED AT T DUE TO PREEMPTION",
                request=make_request(StopKind.TIME_LIMIT),
            ),
            Outcome.PREEMPTED,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T DUE TO PREEMPTION)",
        ),
        (
            Evidence(
                code=1,
                cancelled_line="STEP 4.0 CANCELLED AT T DUE TO TIME LIMIT",
                request=make_request(StopKind.TIME_LIMIT),
                at_its_limit=True,
            ),
            Outcome.TIMED_OUT,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T DUE TO TIME LIMIT)",
        ),
        (
            Evidence(code=0, cancelled_line="STEP 4.0 CANCELLED AT T", was_signalled=True, on_exit_0="finish"),
            Outcome.STOPPED,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T)",
        ),
        (
            Evidence(code=1, cancelled_line="STEP 4.0 CANCELLED AT T", at_its_limit=True),
            Outcome.TIMED_OUT,
            "Slurm signalled the ranks, as a preemption and scancel do (STEP 4.0 CANCELLED AT T)",
        ),
        (Evidence(code=0, request=make_request(StopKind.TERM)), Outcome.STOPPED, "because of term"),
        (Evidence(code=0, request=make_request(StopKind.TIME_LIMIT)), Outcome.STOPPED, "because of time-limit"),
        (
            Evidence(code=0, request=make_request(StopKind.TERM), state=JobState.NODE_FAIL),
            Outcome.NODE_FAILED,
            "Slurm reports NODE_FAIL",
        ),
        (
            Evidence(code=143, request=make_request(StopKind.KILL), state=JobState.NODE_FAIL),
            Outcome.KILLED,
            "because of kill",
        ),
        (Evidence(code=1, request=make_request(StopKind.TIME_LIMIT)), Outcome.CRASHED, "the body exited with 1"),
        (Evidence(code=143, request=make_request(StopKind.TERM)), Outcome.CANCELLED, "because of term"),
        (
            Evidence(code=143, request=make_request(StopKind.TERM), at_its_limit=True),
            Outcome.TIMED_OUT,
            "because of term",
        ),
        (Evidence(), Outcome.LOST, "the attempt left no exit code, and Slurm does not know its end"),
        (Evidence(is_last_step=True), Outcome.LOST, "the attempt left no exit code, and Slurm does not know its end"),
        (
            Evidence(state=JobState.COMPLETED),
            Outcome.FINISHED,
            "Slurm reports COMPLETED; no stop request and no further step are known",
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
def test_best_evidence_decides_the_outcome(evidence: Evidence, outcome: Outcome, why: str) -> None:
    assert decide_outcome(evidence) == (outcome, why)


def test_exactly_the_final_states_have_an_outcome() -> None:
    known = {state for state in JobState if decide_outcome(Evidence(state=state))[0] is not Outcome.LOST}
    assert known == {state for state in JobState if state.is_final}


@pytest.mark.parametrize("left", [{"has_steps_left": True}, {"epochs_left": "Epoch 1/10"}])
def test_exit_without_a_sign_before_the_end_is_not_finished_again(left: dict[str, Any]) -> None:
    assert decide_outcome(Evidence(code=0, is_idle_again=True, lacks_signs=True, **left))[0] is Outcome.IDLE
