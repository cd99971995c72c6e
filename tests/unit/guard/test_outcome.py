"""The outcome of an attempt and the action that follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.guard.outcome import (
    ACTIONS,
    BURNING,
    Action,
    Evidence,
    FinishedAttempt,
    Outcome,
    decide_outcome,
    find_crash_loop,
)
from opsctl.guard.stop_request import StopKind, StopRequest
from opsctl.model import JobState
from opsctl.settings.loader import GuardSettings
from opsctl.trainer.contract import StopReason, TrainerStop

RULES = GuardSettings(short_attempts=3, short_attempt_minutes=20)


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
        (Evidence(code=0), Outcome.EXITED, "the body exited with 0"),
        (Evidence(code=0, is_last_step=True), Outcome.FINISHED, "the log ends with the last iteration"),
        (Evidence(code=1, is_last_step=True), Outcome.CRASHED, "the body exited with 1"),
        (Evidence(code=85), Outcome.CRASHED, "the body exited with 85"),
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
        (Evidence(state=JobState.COMPLETED), Outcome.EXITED, "Slurm reports COMPLETED"),
        (
            Evidence(state=JobState.COMPLETED, is_last_step=True),
            Outcome.FINISHED,
            "the log ends with the last iteration",
        ),
        (Evidence(code=137, state=JobState.NODE_FAIL), Outcome.NODE_FAILED, "Slurm reports NODE_FAIL"),
        (Evidence(code=2, state=JobState.FAILED), Outcome.CRASHED, "the body exited with 2"),
        (Evidence(code=0, state=JobState.CANCELLED), Outcome.EXITED, "the body exited with 0"),
    ],
)
def test_best_evidence_decides_the_outcome(evidence: Evidence, outcome: Outcome, why: str) -> None:
    assert decide_outcome(evidence) == (outcome, why)


def test_exactly_the_final_states_have_an_outcome() -> None:
    known = {state for state in JobState if decide_outcome(Evidence(state=state))[0] is not Outcome.LOST}
    assert known == {state for state in JobState if state.is_final}


def make_attempt(outcome: Outcome, *, minutes: float = 1, new_checkpoint: bool = False) -> FinishedAttempt:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    return FinishedAttempt(
        attempt="12_1.0",
        outcome=outcome,
        action=ACTIONS[outcome],
        why="",
        started=begin,
        ended=begin + timedelta(minutes=minutes),
        new_checkpoint=new_checkpoint,
    )


CRASH = make_attempt(Outcome.CRASHED)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_failures_make_a_crash_loop(outcome: Outcome) -> None:
    assert bool(find_crash_loop([make_attempt(outcome)] * 3, RULES)) == (outcome in BURNING)


@pytest.mark.parametrize(
    "attempts",
    [
        [],
        [CRASH, CRASH],
        [CRASH, make_attempt(Outcome.STOPPED), CRASH],
        [CRASH, CRASH, CRASH, make_attempt(Outcome.CRASHED, minutes=20)],
        [CRASH, make_attempt(Outcome.CRASHED, new_checkpoint=True), CRASH],
    ],
)
def test_progress_or_few_attempts_are_no_crash_loop(attempts: list[FinishedAttempt]) -> None:
    assert find_crash_loop(attempts, RULES) == ""


def test_skipped_attempt_does_not_count_in_a_crash_loop() -> None:
    assert find_crash_loop([CRASH, CRASH, make_attempt(Outcome.SKIPPED)], RULES) == ""
    assert find_crash_loop([CRASH, CRASH, make_attempt(Outcome.SKIPPED), CRASH], RULES) != ""


def test_crash_loop_is_explained() -> None:
    attempts = [replace(CRASH, attempt=f"12_{n}.0") for n in (1, 2, 3)]
    assert find_crash_loop(attempts, RULES) == (
        "3 attempts in a row under 20 min without a new checkpoint: 12_1.0 crashed, 12_2.0 crashed, 12_3.0 crashed"
    )
