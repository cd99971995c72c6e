"""Alerts about attempts that failed."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.findings import Finding, Severity
from opsctl.state.events import (
    AttemptFinalized,
    Cancelled,
    Event,
    ExclusionDecided,
    HoldReleased,
    Readmitted,
    Submitted,
)
from opsctl.state.journal import actor
from opsctl.state.reasons import Reason, ReasonKind, as_written
from opsctl.watchdogs.failures import failures
from tests.support.cases import read_cases
from tests.support.made_events import make_diagnosed
from tests.support.watch_context import T0, Bench

ATTEMPT = "7_1.0"
CAUSE = make_diagnosed(
    attempt=ATTEMPT,
    cause="gpu-ecc",
    says="uncorrectable memory error of a GPU",
    node="node003",
    rank=5,
    suspects=("node003",),
    evidence=("RuntimeError: CUDA error: uncorrectable ECC error",),
    also=("3 ranks say the same",),
    advice="Exclude the node.",
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def judge(bench: Bench) -> list[Finding]:
    return failures(bench.run, bench.journal.events(), bench.clock.now())


def quarantine_node(bench: Bench, *, excluded: bool = True, hours: float = 72, attempt: str = ATTEMPT) -> None:
    bench.journal.append(replace(CAUSE, attempt=attempt))
    bench.journal.append(
        ExclusionDecided(
            attempt=attempt,
            nodes="node003",
            until=T0 + timedelta(hours=hours),
            excluded=excluded,
            done=("excluded node003",),
            reason=as_written("gpu: uncorrectable memory error of a GPU (node003, rank 5)"),
        )
    )
    finalize(bench, "exclude-nodes" if excluded else "continue", attempt=attempt)


def finalize(bench: Bench, action: str, outcome: str = "crashed", attempt: str = ATTEMPT) -> None:
    bench.journal.append(
        AttemptFinalized(attempt=attempt, outcome=outcome, action=action, why="the body exited with 1")
    )


def test_continuing_attempts_are_ok(bench: Bench) -> None:
    finalize(bench, "continue")
    assert [(finding.key, finding.is_ok) for finding in bench.judge_all("failures")] == [("failures/gpt", True)]


def test_excluded_node_is_reported_with_its_evidence(bench: Bench) -> None:
    quarantine_node(bench)
    [finding] = bench.judge_all("failures")
    assert (finding.key, finding.severity, finding.node) == ("failures/gpt/7_1.0", Severity.WARNING, "node003")
    says = "uncorrectable memory error of a GPU (node003, rank 5)"
    assert finding.summary == f"gpt continues without node003: gpu: {says} (attempt 7_1.0)"
    assert finding.evidence == (CAUSE.evidence[0], "3 ranks say the same")
    assert finding.done == ("excluded node003",)
    assert finding.remedy.startswith("Reset the GPU; replace the GPU if the error returns")
    assert finding.remedy.endswith(" Details: opsctl why gpt. Check the node: opsctl health node003")
    assert finding.is_certain


def test_finding_ends_with_the_exclusion(bench: Bench) -> None:
    quarantine_node(bench, hours=1)
    bench.clock.sleep(3600)
    assert [finding.severity for finding in judge(bench)] == [Severity.OK]


def test_finding_ends_when_the_node_is_readmitted(bench: Bench) -> None:
    quarantine_node(bench)
    bench.journal.append(Readmitted(jobs=("7",), nodes="node[002-003]"))
    assert [finding.severity for finding in judge(bench)] == [Severity.OK]


def test_node_without_replacement_is_critical(bench: Bench) -> None:
    quarantine_node(bench, excluded=False)
    [finding] = judge(bench)
    assert finding.severity is Severity.CRITICAL
    assert finding.summary.partition(":")[0] == "gpt continues with node003, for lack of other nodes"


def test_repeated_failure_of_a_node_is_reported_once(bench: Bench) -> None:
    quarantine_node(bench, excluded=False)
    quarantine_node(bench, excluded=False, attempt="7_2.0")
    [finding] = judge(bench)
    assert (finding.key, finding.summary.rpartition(" ")[2]) == ("failures/gpt/7_1.0", "7_2.0)")


@pytest.mark.parametrize(
    ("event", "done"),
    [
        (HoldReleased(jobs=("7",)), "released"),
        (Submitted(nonce="n", array="7"), "launched again"),
        (Cancelled(jobs=("7",), reason=as_written("x")), "cancelled"),
    ],
)
def test_held_train_is_reported_until_a_decision(bench: Bench, event: Event, done: str) -> None:
    finalize(bench, "continue", attempt="7_1.0")
    finalize(bench, "hold-queued", attempt="7_2.0")
    [finding] = judge(bench)
    assert (finding.key, finding.severity) == ("failures/gpt/7_2.0", Severity.CRITICAL)
    assert finding.summary == "gpt is held: 7_2.0 crashed: the body exited with 1"
    bench.journal.append(event)
    [finding] = judge(bench)
    person = actor().partition("@")[0]
    assert (finding.key, finding.severity) == ("failures/gpt/7_2.0", Severity.OK)
    assert finding.summary == f"gpt was {done} by {person}"


@pytest.mark.parametrize(*read_cases(__file__, "alert_of_a_held_train_fits_the_queue"))
def test_alert_of_a_held_train_fits_the_queue(bench: Bench, waiting: int, summary: str, command: str) -> None:
    cause = "an error in the training program: KeyError: 'image'"
    for number in 1, 2:
        attempt = f"7_{number}.0"
        bench.journal.append(replace(CAUSE, attempt=attempt, cause_kind="code", cause="python-error", says=cause))
        finalize(bench, "hold-queued" if number == 2 else "continue", attempt=attempt)
    [finding] = failures(bench.run, bench.journal.events(), bench.clock.now(), waiting=waiting)
    assert finding.summary == summary.format(cause=cause)
    assert f"After the repair: {command.format(config=bench.run.config)}" in finding.remedy
    assert finding.done == (("held the queued tasks of gpt",) if waiting else ())


def test_held_train_is_reported_after_a_duplicate_is_dropped(bench: Bench) -> None:
    finalize(bench, "hold-queued")
    bench.journal.append(Cancelled(jobs=("8",), reason=Reason(kind=ReasonKind.DUPLICATE)))
    bench.journal.append(Cancelled(jobs=("7",), task=3, reason=as_written("one task")))
    [finding] = judge(bench)
    assert finding.severity is Severity.CRITICAL


def test_requested_pause_is_no_failure(bench: Bench) -> None:
    finalize(bench, "hold-queued", "paused")
    assert [finding.severity for finding in judge(bench)] == [Severity.OK]


def test_lost_node_and_hold_are_reported_once(bench: Bench) -> None:
    quarantine_node(bench)
    finalize(bench, "hold-queued")
    [finding] = judge(bench)
    assert (finding.severity, finding.done) == (Severity.CRITICAL, ("excluded node003", "held the queued tasks of gpt"))


def test_names_of_files_are_read_in_quoted_lines_only(bench: Bench) -> None:
    quoted, own = ("no such file: /out/checkpoint-500",), ("the same node ended checkpoint-400",)
    bench.journal.append(replace(CAUSE, evidence=quoted, also=own))
    finalize(bench, "hold-queued")
    [finding] = judge(bench)
    assert finding.names == ("checkpoint-500",)
    assert finding.evidence == (*quoted, *own)
