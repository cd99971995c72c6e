"""What opsctl proposes instead of doing, as `[policy]` says, and what follows once a person confirms."""

from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.base.findings import Severity
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.end_record import Action, FinishedAttempt
from opsctl.guard.finalize import finalize
from opsctl.guard.node_care import NodeCare
from opsctl.monitor.confirm_proposals import confirm_proposals, find_proposals
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity, Health, Verdict
from opsctl.settings.health import PolicySettings
from opsctl.state.events import ExclusionDecided, RequestDone
from opsctl.state.reasons import as_written
from opsctl.trainer.contract import TrainerStop
from opsctl.watchdogs.failures import failures
from tests.support.finalized_trains import QueuedTrain, make_node_care


def end(train: QueuedTrain, number: int = 1, *, stop: TrainerStop | None = None, **steps: str) -> FinishedAttempt:
    """Finalize an attempt under a policy: one that the trainer stopped, or else a short crash."""
    attempt = train.start_attempt(f"12_{number}.0")
    if stop:
        train.stop_trainer(attempt, stop)
    train.end_body(attempt, 0 if stop else 1)
    care = replace(make_node_care(train), policy=PolicySettings.model_validate(steps))
    return finalize(train.arrays, train.rules, attempt, care=care)


def crash_three_times(train: QueuedTrain, **steps: str) -> FinishedAttempt:
    return [end(train, number, **steps) for number in (1, 2, 3)][-1]


def list_open(train: QueuedTrain) -> list[str]:
    found = failures(train.run, train.arrays.journal.events(), train.clock.now())
    return [finding.says.kind for finding in found if finding.severity is Severity.CRITICAL]


def test_a_proposed_hold_is_open_until_a_person_holds(train: QueuedTrain) -> None:
    ended = crash_three_times(train, hold="propose")
    assert (ended.action, "hold" in train.queue.calls) == (Action.PROPOSE_HOLD, False)
    assert list_open(train) == ["failures.proposes_hold"]
    train.arrays.hold(as_written("yes"))
    assert list_open(train) == []


def test_a_proposed_hold_is_over_once_a_person_decides_otherwise(train: QueuedTrain) -> None:
    crash_three_times(train, hold="propose")
    train.arrays.release()
    assert list_open(train) == []


def test_a_training_that_is_over_is_held_until_a_person_cancels(train: QueuedTrain) -> None:
    ended = end(train, stop=TrainerStop.FINISHED, cancel="propose")
    assert (ended.action, "cancel" in train.queue.calls) == (Action.PROPOSE_CANCEL, False)
    assert all(row.is_held for row in train.queue.waiting)
    assert list_open(train) == ["failures.proposes_cancel"]
    train.arrays.cancel(as_written("yes"))
    assert list_open(train) == []


def test_what_a_person_asked_for_is_done_at_once(train: QueuedTrain) -> None:
    ended = end(train, stop=TrainerStop.PAUSE, hold="propose", cancel="propose")
    assert (ended.action, "hold" in train.queue.calls) == (Action.HOLD_QUEUED, True)


def confirm(train: QueuedTrain, care: NodeCare) -> list[str]:
    return confirm_proposals(train.arrays, care, "anna by team: confirm")


@pytest.mark.parametrize(
    ("stop", "policy", "done"),
    [
        (None, PolicySettings(hold="propose"), ["held 12"]),
        (TrainerStop.FINISHED, PolicySettings(cancel="propose"), ["cancelled 12"]),
    ],
)
def test_a_person_confirms_a_step_once(
    train: QueuedTrain, stop: TrainerStop | None, policy: PolicySettings, done: list[str]
) -> None:
    for number in (1,) if stop else (1, 2, 3):
        end(train, number, stop=stop, **policy.model_dump(exclude_defaults=True))
    care = replace(make_node_care(train), policy=policy)
    assert confirm(train, care) == done
    assert [event.by for event in train.arrays.journal.events() if isinstance(event, RequestDone)] == [
        "anna by team: confirm"
    ]
    assert (list_open(train), confirm(train, care)) == ([], [])


def test_a_proposed_exclusion_excludes_nothing_until_a_person_confirms(train: QueuedTrain) -> None:
    train.queue.states["node001"] = "DOWN"
    attempt = train.start_attempt(nodes="node[001-002]")
    train.run.main_log.write_text("srun: error: Node failure on node001\n")
    train.end_body(attempt, 1, after=3600)
    care = replace(make_node_care(train), policy=PolicySettings(exclude="propose", drain="propose"))
    ended = finalize(train.arrays, train.rules, attempt, care=care)
    assert (ended.suspects, ended.action) == (("node001",), Action.CONTINUE)
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])
    assert ended.done == ("proposed to exclude node001; to do it: opsctl release gpt --exclude node001",)
    assert list_open(train) == ["failures.proposes_exclusion"]
    [said, *_] = confirm(train, care)
    assert said.startswith("excluded node001 for queued tasks and later launches")
    assert [exclusion.node for exclusion in care.exclusions.now()] == ["node001"]
    assert (list_open(train), confirm(train, care)) == ([], [])


def blame(train: QueuedTrain, care: NodeCare) -> ExclusionDecided:
    fault = CheckResult(check="ecc", severity=CheckSeverity.FAULTY, evidence="ECC errors: 3")
    bad = Verdict(node="node001", health=Health.FAULTY, results=(fault,), at=train.clock.now(), by="ssh")
    diagnosis = Diagnosis(kind=CauseKind.GPU, cause="gpu-ecc", says="ECC", node="node001", attempt="12_1.0")
    decided = care.remove_suspects(train.arrays, diagnosis, ["node001"], [bad])
    train.arrays.note(decided)
    return decided


def test_a_drain_waits_for_a_person(train: QueuedTrain) -> None:
    care = replace(make_node_care(train), policy=PolicySettings(drain="propose"))
    decided = blame(train, care)
    assert (decided.excluded, decided.to_drain, "drain" in train.queue.calls) == (True, "node001", False)
    assert list(find_proposals(train.arrays.journal.events(), train.clock.now())) == ["drain node001"]
    confirm(train, care)
    assert find_proposals(train.arrays.journal.events(), train.clock.now()) == {}


def test_no_node_is_drained_while_the_exclusions_cannot_be_read(train: QueuedTrain) -> None:
    care = make_node_care(train)
    care.exclusions.site.create()
    care.exclusions.site.write(care.exclusions.site.nodes / "exclusions.json", "[")
    assert (blame(train, care).excluded, "drain" in train.queue.calls) == (True, False)


def test_a_person_who_excludes_by_hand_confirms_the_proposal(train: QueuedTrain) -> None:
    blame(train, replace(make_node_care(train), policy=PolicySettings(exclude="propose")))
    assert list_open(train) == ["failures.proposes_exclusion"]
    train.arrays.exclude("node[001-002]", needed=1)
    assert list_open(train) == []


def test_two_attempts_that_end_at_once_keep_to_the_limit_of_a_day(train: QueuedTrain) -> None:
    """The other attempt excludes its nodes between our check and our entry."""
    exclusions = make_node_care(train).exclusions
    exclusions.add([("node001", "x"), ("node002", "x")], hours=1, per_day=2)
    with pytest.raises(InputError, match="exclude_per_day allows 2 in 24 h, with 2 excluded so far"):
        exclusions.add([("node003", "x")], hours=1, per_day=2)
    assert [out.node for out in exclusions.now()] == ["node001", "node002"]
