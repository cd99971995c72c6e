"""The outcome of an attempt and the action that follows."""

from typing import Any

import pytest

from opsctl.base.model import JobState
from opsctl.guard.action import ACTIONS
from opsctl.guard.end_record import Action, Outcome
from opsctl.guard.outcome import Evidence, decide_outcome
from opsctl.guard.stop_request import StopKind, StopRequest
from opsctl.trainer.contract import StopReason, TrainerStop
from tests.support.cases import read_cases


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
    *read_cases(__file__, "reason_of_the_trainer_overrides_exit_code_and_state", reason=TrainerStop, outcome=Outcome)
)
def test_reason_of_the_trainer_overrides_exit_code_and_state(reason: TrainerStop, outcome: Outcome) -> None:
    assert decide_outcome(Evidence(stop=make_stop(reason), code=1, state=JobState.TIMEOUT))[0] is outcome


def test_every_stop_reason_has_a_rule() -> None:
    assert all(decide_outcome(Evidence(stop=make_stop(reason)))[0] is not Outcome.LOST for reason in TrainerStop)


@pytest.mark.parametrize("code", [0, 1, 143, None])
@pytest.mark.parametrize(*read_cases(__file__, "requested_stop_decides_the_outcome", stop=StopKind, outcome=Outcome))
def test_requested_stop_decides_the_outcome(stop: StopKind, outcome: Outcome, code: int | None) -> None:
    assert decide_outcome(Evidence(request=make_request(stop), code=code)) == (outcome, f"because of {stop}")


def test_kill_switch_overrides_the_stop_request() -> None:
    evidence = Evidence(stop=make_stop(TrainerStop.STOP_REQUEST), request=make_request(StopKind.KILL), code=0)
    assert decide_outcome(evidence)[0] is Outcome.KILLED


@pytest.mark.parametrize(*read_cases(__file__, "best_evidence_decides_the_outcome", outcome=Outcome))
def test_best_evidence_decides_the_outcome(evidence: dict[str, Any], outcome: Outcome, why: str) -> None:
    if "request" in evidence:
        evidence = {**evidence, "request": make_request(StopKind(evidence["request"]))}
    state = JobState(evidence.get("state", JobState.UNKNOWN))
    assert decide_outcome(Evidence(**{**evidence, "state": state})) == (outcome, why)


def test_exactly_the_final_states_have_an_outcome() -> None:
    known = {state for state in JobState if decide_outcome(Evidence(state=state))[0] is not Outcome.LOST}
    assert known == {state for state in JobState if state.is_final}


@pytest.mark.parametrize("left", [{"has_steps_left": True}, {"epochs_left": "Epoch 1/10"}])
def test_exit_without_a_sign_before_the_end_is_not_finished_again(left: dict[str, Any]) -> None:
    assert decide_outcome(Evidence(code=0, is_idle_again=True, lacks_signs=True, **left))[0] is Outcome.IDLE
