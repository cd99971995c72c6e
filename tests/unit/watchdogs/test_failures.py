"""What ended attempts, and what people are told of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.model import Finding, Level
from opsctl.state.journal import EventKind
from opsctl.watchdogs.failures import failures
from tests.support.watch_context import T0, Stage

ATTEMPT = "7_1.0"
CAUSE = {
    "attempt": ATTEMPT,
    "class": "gpu",
    "cause": "gpu-ecc",
    "says": "uncorrectable memory error of a GPU",
    "node": "node003",
    "rank": 5,
    "suspects": ["node003"],
    "evidence": ["RuntimeError: CUDA error: uncorrectable ECC error"],
    "also": ["3 ranks say the same"],
    "advice": "Exclude the node.",
}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def found(stage: Stage) -> list[Finding]:
    return failures("gpt", stage.journal.events(), stage.clock.now())


def taken(stage: Stage, *, excluded: bool = True, hours: float = 72, attempt: str = ATTEMPT) -> None:
    stage.journal.append(EventKind.DIAGNOSED, **{**CAUSE, "attempt": attempt})
    stage.journal.append(
        EventKind.QUARANTINED,
        attempt=attempt,
        nodes="node003",
        until=(T0 + timedelta(hours=hours)).isoformat(),
        excluded=excluded,
        done=["excluded node003"],
        why="gpu: uncorrectable memory error of a GPU (node003, rank 5)",
    )
    finalized(stage, "exclude-nodes" if excluded else "continue", attempt=attempt)


def finalized(stage: Stage, action: str, outcome: str = "crashed", attempt: str = ATTEMPT) -> None:
    stage.journal.append(
        EventKind.ATTEMPT_FINALIZED, attempt=attempt, outcome=outcome, action=action, why="the body exited with 1"
    )


def test_the_failures_watchdog_finds_nothing_where_attempts_go_on(stage: Stage) -> None:
    finalized(stage, "continue")
    assert [(finding.key, finding.level) for finding in stage.judge_all("failures")] == [("failures/gpt", Level.OK)]


def test_a_node_that_the_train_is_kept_from_is_told_with_cause_rank_evidence_and_what_was_done(stage: Stage) -> None:
    taken(stage)
    [finding] = stage.judge_all("failures")
    assert (finding.key, finding.level, finding.node) == ("failures/gpt/7_1.0", Level.WARNING, "node003")
    literal = "gpt goes on without node003: 7_1.0: gpu: uncorrectable memory error of a GPU (node003, rank 5)"
    assert finding.summary == literal
    assert finding.evidence == (CAUSE["evidence"][0], "3 ranks say the same")
    assert finding.done == ("excluded node003",)
    assert finding.remedy == "Exclude the node. opsctl why gpt; opsctl health node003"
    assert finding.is_certain


def test_it_is_over_when_the_exclusion_is(stage: Stage) -> None:
    taken(stage, hours=1)
    stage.clock.sleep(3600)
    assert [finding.level for finding in found(stage)] == [Level.OK]


def test_it_is_over_when_the_node_is_given_back(stage: Stage) -> None:
    taken(stage)
    stage.journal.append(EventKind.READMITTED, jobs=["7"], nodes="node[002-003]")
    assert [finding.level for finding in found(stage)] == [Level.OK]


def test_a_node_that_cannot_be_spared_is_critical(stage: Stage) -> None:
    taken(stage, excluded=False)
    [finding] = found(stage)
    assert (finding.level, finding.summary.partition(":")[0]) == (
        Level.CRITICAL,
        "gpt goes on with node003, too few other nodes",
    )


def test_a_node_that_ends_attempt_after_attempt_is_told_once(stage: Stage) -> None:
    taken(stage, excluded=False)
    taken(stage, excluded=False, attempt="7_2.0")
    [finding] = found(stage)
    assert (finding.key, finding.summary.split(": ")[1]) == ("failures/gpt/7_1.0", "7_2.0")


@pytest.mark.parametrize("ends", [EventKind.RELEASED, EventKind.SUBMITTED, EventKind.CANCELLED])
def test_a_train_that_is_held_for_a_failure_is_told_until_somebody_decides(stage: Stage, ends: EventKind) -> None:
    finalized(stage, "continue", attempt="7_1.0")
    finalized(stage, "hold-queued", attempt="7_2.0")
    [finding] = found(stage)
    assert (finding.key, finding.level) == ("failures/gpt/7_2.0", Level.CRITICAL)
    assert finding.summary == "gpt is held: 7_2.0 crashed: the body exited with 1"
    data = {
        EventKind.RELEASED: {"jobs": ["7"]},
        EventKind.SUBMITTED: {"nonce": "n", "array": "7"},
        EventKind.CANCELLED: {"job": "7", "why": "x"},
    }
    stage.journal.append(ends, **data[ends])
    assert [each.level for each in found(stage)] == [Level.OK]


def test_a_pause_that_people_asked_for_is_no_failure(stage: Stage) -> None:
    finalized(stage, "hold-queued", "paused")
    assert [finding.level for finding in found(stage)] == [Level.OK]


def test_a_attempt_that_both_lost_a_node_and_held_the_train_is_told_once(stage: Stage) -> None:
    taken(stage)
    finalized(stage, "hold-queued")
    [finding] = found(stage)
    assert (finding.level, finding.done) == (Level.CRITICAL, ("excluded node003", "held what is queued of gpt"))
