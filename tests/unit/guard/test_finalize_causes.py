"""Finalize with a diagnosis: faulty nodes are excluded, lasting faults hold the train, other trains continue."""

import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from opsctl.base.errors import Unreachable
from opsctl.base.model import JobState, Node
from opsctl.diagnosis import causes
from opsctl.diagnosis.causes import CauseKind, Scope
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.end_record import Action, Outcome
from opsctl.guard.finalize import finalize, finalize_ended
from opsctl.guard.node_care import NodeCare, find_accused
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.guard.unfinalized import list_unfinalized
from opsctl.monitor.reconcile import reconcile
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity, Health, NodeSnapshot, Verdict
from opsctl.nodes.node_score import node_score
from opsctl.state.events import AttemptFinalized, Diagnosed, Event, Excluded, ExclusionDecided
from opsctl.state.run_dir import Attempt
from tests.support.finalized_trains import QueuedTrain, killed_after, make_node_care

E = TypeVar("E", bound=Event)

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = "KeyError: 'lr'"
FULL = "OSError: [Errno 28] No space left on device"
Write = Callable[[str], None]


@pytest.fixture
def care(train: QueuedTrain) -> NodeCare:
    return make_node_care(train)


def crash_attempt(
    train: QueuedTrain, line: str, *, task: int = 1, node: str = "node001", minutes: float = 1
) -> Attempt:
    """Finish an attempt on `node` whose rank 3 logged `line` at its end."""
    attempt = train.start_attempt(f"12_{task}.0")
    logs = train.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{node}-3.log").write_text(f"Traceback (most recent call last):\n  at train.py:7\n{line}\n")
    train.end_body(attempt, 1, after=minutes * 60)
    return attempt


def suspect(train: QueuedTrain) -> None:
    """Record that an earlier attempt has made node001 suspect: a log line alone excludes nothing."""
    earlier = Diagnosed(
        attempt="11_1.0",
        cause_kind="gpu",
        cause="gpu-ecc",
        says="",
        node="node001",
        rank=3,
        suspects=(),
        evidence=(),
        also=(),
        advice="",
        accused=("node001",),
    )
    train.arrays.journal.append(earlier)


def crash_again(train: QueuedTrain, *, task: int = 1) -> Attempt:
    """Finish a second attempt that the same message of node001 ends."""
    suspect(train)
    return crash_attempt(train, ECC, task=task)


def events(train: QueuedTrain, kind: type[E]) -> list[E]:
    return [event for event in train.arrays.journal.events() if isinstance(event, kind)]


def test_node_of_a_failed_gpu_is_excluded(train: QueuedTrain, care: NodeCare) -> None:
    train.queue.excludes["12"] = "node004"
    ended = finalize(train.arrays, train.rules, crash_again(train), care=care)
    assert (ended.outcome, ended.action, ended.kind) == (Outcome.CRASHED, Action.EXCLUDE_NODES, CauseKind.GPU)
    assert ended.why == "the body exited with 1; gpu: uncorrectable memory error of a GPU (node001, rank 3)"
    assert train.queue.excludes == {"12": "node[001,004]"}
    assert not any(job.is_held for job in train.queue.waiting)
    [_, cause] = events(train, Diagnosed)
    assert (cause.cause_kind, cause.cause, cause.suspects) == ("gpu", "gpu-ecc", ("node001",))
    assert cause.evidence[-1] == ECC
    assert train.event_kinds()[-4:] == [
        Diagnosed,
        Excluded,
        ExclusionDecided,
        AttemptFinalized,
    ]


def test_earlier_health_findings_are_journalled(train: QueuedTrain, care: NodeCare) -> None:
    result = CheckResult(check="xid", severity=CheckSeverity.DEGRADED, evidence="Xid 94")
    verdict = Verdict(node="node001", health=Health.DEGRADED, results=(result,), at=train.clock.now(), by="ssh")
    care.history.save([(NodeSnapshot(node="node001", at=train.clock.now()), verdict)], baseline_hours=24)
    finalize(train.arrays, train.rules, crash_attempt(train, ECC), care=care)
    [cause] = events(train, Diagnosed)
    assert cause.also[0] == "node001 has had 1 finding (xid 1) in the 28 days before"


def test_exclusion_holds_for_launches_and_is_reported(train: QueuedTrain, care: NodeCare) -> None:
    ended = finalize(train.arrays, train.rules, crash_again(train), care=care)
    [exclusion] = care.exclusions.now()
    assert exclusion.reason == f"opsctl: gpu-ecc: uncorrectable memory error of a GPU: {ECC}"
    assert exclusion.until - exclusion.since == 72 * 3600
    assert exclusion.reason in (care.history.site.nodes / "report.txt").read_text()
    assert ended.done[1].startswith("node001 is not drained; the report for the administrators is in ")


def test_too_few_nodes_left_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    train.queue.excludes["12"] = "node[002-003]"
    ended = finalize(train.arrays, train.rules, crash_again(train), care=care)
    literal = "node001 was not excluded: with node[001-003] excluded 1 nodes are left, and array 12 needs 2"
    assert (ended.action, ended.done) == (Action.CONTINUE, (literal,))
    assert train.queue.excludes == {"12": "node[002-003]"}
    assert (care.exclusions.now(), events(train, Excluded)) == ([], [])
    assert events(train, ExclusionDecided)[0].excluded is False


def test_node_outside_the_attempt_is_never_excluded(train: QueuedTrain, care: NodeCare) -> None:
    ended = finalize(train.arrays, train.rules, crash_attempt(train, ECC, node="node003"), care=care)
    assert (ended.action, ended.suspects, train.queue.excludes) == (Action.CONTINUE, (), {})


def test_address_shared_by_nodes_names_none() -> None:
    diagnosis = Diagnosis(kind=CauseKind.NETWORK, cause="infiniband", says="", scope=Scope.NODE, node="127.0.0.1")
    nodes = [Node(name=name, state="IDLE", address="127.0.0.1") for name in ("node001", "node002")]
    assert find_accused(diagnosis, "node001", nodes) == ()
    assert find_accused(diagnosis, "node001", nodes[:1] * 2) == ("node001",)  # one node listed in two partitions


def test_repeated_bug_holds_queued_tasks(train: QueuedTrain, care: NodeCare) -> None:
    first = finalize(train.arrays, train.rules, crash_attempt(train, BUG, minutes=600), care=care)
    assert first.action is Action.CONTINUE
    second = finalize(train.arrays, train.rules, crash_attempt(train, BUG, task=2, minutes=600), care=care)
    assert second.action is Action.HOLD_QUEUED
    assert second.why.endswith(
        "a code fault ended 2 attempts in a row without progress: python-error;"
        " before a release, change the code or the settings (opsctl edit)"
    )
    assert all(job.is_held for job in train.queue.waiting)
    assert train.queue.excludes == {}


def test_disk_full_once_holds_nothing(train: QueuedTrain, care: NodeCare, checkpoint: Write) -> None:
    finalize(train.arrays, train.rules, crash_attempt(train, FULL, minutes=600), care=care)
    attempt = train.start_attempt("12_2.0")
    checkpoint("step-2")
    assert finalize(train.arrays, train.rules, end_attempt(train, attempt, FULL), care=care).action is Action.CONTINUE


def end_attempt(train: QueuedTrain, attempt: Attempt, line: str) -> Attempt:
    (train.run.attempt_logs(attempt.name) / "node001-3.log").write_text(f"{line}\n")
    train.end_body(attempt, 1, after=600 * 60)
    return attempt


def test_two_different_faults_are_no_loop(train: QueuedTrain, care: NodeCare) -> None:
    finalize(train.arrays, train.rules, crash_attempt(train, FULL, minutes=600), care=care)
    second = finalize(train.arrays, train.rules, crash_attempt(train, BUG, task=2, minutes=600), care=care)
    assert second.action is Action.CONTINUE


def test_excluded_nodes_do_not_make_a_crash_loop(train: QueuedTrain, care: NodeCare) -> None:
    rules = train.rules.model_copy(update={"short_attempts": 2})
    suspect(train)
    for task in (1, 2, 3):
        ended = finalize(train.arrays, rules, crash_attempt(train, ECC, task=task), care=care)
        assert ended.action is Action.EXCLUDE_NODES
    assert not any(job.is_held for job in train.queue.waiting)


def test_mistaken_cause_does_not_take_every_node(train: QueuedTrain, care: NodeCare) -> None:
    rules = train.rules.model_copy(update={"stalled_attempts": 3})
    suspect(train)
    ended = [finalize(train.arrays, rules, crash_attempt(train, ECC, task=task), care=care) for task in (1, 2, 3)]
    assert [finished.action for finished in ended] == [
        Action.EXCLUDE_NODES,
        Action.EXCLUDE_NODES,
        Action.HOLD_QUEUED,
    ]
    assert all(job.is_held for job in train.queue.waiting)


def test_node_failure_excludes_the_node_that_is_down(train: QueuedTrain, care: NodeCare) -> None:
    train.queue.states["node001"] = "DOWN+NOT_RESPONDING"
    attempt = train.start_attempt()
    train.add_row((1,), JobState.NODE_FAIL, restarts=0, end=train.clock.now() + timedelta(minutes=1))
    ended = finalize(train.arrays, train.rules, attempt, job=train.queue.rows[-1], care=care)
    assert (ended.outcome, ended.kind, ended.suspects) == (Outcome.NODE_FAILED, CauseKind.NODE, ("node001",))
    assert train.queue.excludes == {"12": "node001"}


CANCELLED = "x\nslurmstepd: error: *** JOB 13 ON node001 CANCELLED AT 2026-03-01T20:00:01 ***"


def hang_attempt(train: QueuedTrain, number: int, *, log: str = "") -> Attempt:
    """Finish an attempt of two nodes that the watch cancelled as hung, with rank 3 in another function."""
    attempt = train.start_attempt(f"12_{number}.0", nodes="node[001-002]")
    path = attempt.path / "evidence" / "hang-20260301T120000"
    path.mkdir(parents=True)
    for rank in range(4):
        function = "read_batch" if rank == 3 else "all_reduce"
        dump = f'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in {function}\n'
        (path / f"node00{1 + rank // 2}-{rank}.txt").write_text(dump)
    if log:
        train.run.main_log.write_text(f"[node001:1]: {log}\n")
    request_stop(train.run, attempt, StopKind.HUNG, f"{attempt.name} hangs: no sign of life for 20 min")
    train.end_body(attempt, 143, after=8 * 3600)
    return attempt


def test_hang_names_the_odd_rank_and_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    train.run.config.write_text(train.run.config.read_text().replace("nodes = 2", "nodes = 2\nprocesses_per_node = 2"))
    ended = finalize(train.arrays, train.rules, hang_attempt(train, 1), care=care)
    assert (ended.outcome, ended.action, ended.cause, ended.suspects) == (Outcome.HUNG, Action.CONTINUE, "hang", ())
    odd = "1 rank (node node002: 3) in read_batch at train.py:7"
    assert ended.why == (
        f"12_1.0 hangs: no sign of life for 20 min; hang: the attempt hung, odd: {odd} (node002, rank 3)"
    )
    assert ended.done == ("recorded node002 as the odd one of a hang, 1 in 28 days",)
    [cause] = events(train, Diagnosed)
    assert cause.evidence[:2] == (
        odd,
        "3 ranks (node node001: 0-1; node node002: 2) in all_reduce at train.py:7",
    )
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])


def test_node_of_repeated_hangs_gets_a_score(train: QueuedTrain, care: NodeCare) -> None:
    train.run.config.write_text(train.run.config.read_text().replace("nodes = 2", "nodes = 2\nprocesses_per_node = 2"))
    scores = []
    for number in (1, 2, 3):
        finalize(train.arrays, train.rules, hang_attempt(train, number), care=care)
        scores.append(node_score(care.history.read("node002"), {}, train.clock.now(), 28))
    assert scores == [0, 4, 6]
    assert care.history.read("node001").hangs == {}
    last = events(train, Diagnosed)[-1]
    assert "node002 had the odd ranks in 2 hangs in the 28 days before" in last.also
    assert (train.queue.excludes, events(train, ExclusionDecided)) == ({}, [])


def test_cause_in_the_log_of_a_hang_comes_first(train: QueuedTrain, care: NodeCare) -> None:
    suspect(train)
    ended = finalize(train.arrays, train.rules, hang_attempt(train, 1, log=ECC), care=care)
    assert (ended.cause, ended.action, ended.suspects) == ("gpu-ecc", Action.EXCLUDE_NODES, ("node001",))
    [_, cause] = events(train, Diagnosed)
    assert any("read_batch" in line for line in cause.also)


def test_hang_without_stacks_has_no_suspect(train: QueuedTrain, care: NodeCare) -> None:
    attempt = hang_attempt(train, 1, log=CANCELLED)
    shutil.rmtree(attempt.path / "evidence")
    ended = finalize(train.arrays, train.rules, attempt, care=care)
    assert (ended.cause, ended.why.partition("; ")[2], ended.done) == ("hang", "hang: the attempt hung", ())


def test_failed_diagnosis_does_not_stop_finalize(
    train: QueuedTrain, care: NodeCare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of causes are broken, so the attempt is finalized as without a diagnosis."""
    attempt = crash_attempt(train, ECC)
    monkeypatch.setattr(causes, "read_package_table", lambda _: tomllib.loads("[[cause]\n"))
    causes.causes.cache_clear()
    try:
        ended = finalize(train.arrays, train.rules, attempt, care=care)
    finally:
        causes.causes.cache_clear()
    assert (ended.outcome, ended.action, ended.kind) == (Outcome.CRASHED, Action.CONTINUE, CauseKind.UNKNOWN)
    assert (ended.why, train.queue.excludes, list_unfinalized(train.run, train.arrays.check([]).history)) == (
        "the body exited with 1",
        {},
        [],
    )
    [cause] = events(train, Diagnosed)
    assert cause.says.startswith("the diagnosis failed: ")


def test_slow_diagnosis_is_abandoned(train: QueuedTrain, care: NodeCare) -> None:
    attempt = crash_attempt(train, ECC)
    with train.run.main_log.open("ab") as log:
        log.truncate(1 << 28)
    ended = finalize(train.arrays, train.rules.model_copy(update={"diagnosis_seconds": 0.01}), attempt, care=care)
    assert (ended.action, ended.kind, ended.cause) == (Action.CONTINUE, CauseKind.UNKNOWN, "nothing")


@pytest.mark.parametrize("calls", range(8))
def test_finalize_interrupted_by_slurm_excludes_once(train: QueuedTrain, care: NodeCare, calls: int) -> None:
    attempt = crash_again(train)
    train.queue.breaks_after = calls
    try:
        finalize(train.arrays, train.rules, attempt, care=care)
    except Unreachable:
        assert list_unfinalized(train.run, train.arrays.check([]).history) == [attempt]
    train.queue.breaks_after = None
    finalize(train.arrays, train.rules, attempt, care=care)
    assert (len(events(train, Diagnosed)), len(events(train, AttemptFinalized))) == (2, 1)
    assert train.queue.excludes == {"12": "node001"}


@pytest.mark.parametrize("writes", range(5))
def test_finalize_killed_before_a_write_excludes_once(train: QueuedTrain, care: NodeCare, writes: int) -> None:
    attempt = crash_again(train)
    literal = "excluded node001 for queued tasks and later launches, until "

    with killed_after(writes):
        finalize(train.arrays, train.rules, attempt, care=care)
    assert not attempt.end.exists()
    finalize(train.arrays, train.rules, attempt, care=care)
    assert (len(events(train, Diagnosed)), len(events(train, AttemptFinalized))) == (2, 1)
    assert (train.queue.excludes, train.end(attempt)["action"]) == ({"12": "node001"}, "exclude-nodes")
    assert len(care.exclusions.now()) == 1
    assert train.end(attempt)["done"][0].startswith(literal)


def test_reconcile_finalizes_with_the_cause(train: QueuedTrain, care: NodeCare) -> None:
    crash_again(train)
    assert "exclude-nodes" in reconcile(train.arrays, care=care)[0]
    [ended] = finalize_ended(train.arrays, train.rules, train.arrays.check(), care=care) or [None]
    assert ended is None


def test_node_is_readmitted_when_its_exclusion_ends(train: QueuedTrain, care: NodeCare) -> None:
    train.arrays.exclude("node003", needed=2)
    finalize(train.arrays, train.rules, crash_again(train), care=care)
    assert reconcile(train.arrays, care=care) == []
    train.clock.sleep(72 * 3600)
    assert reconcile(train.arrays, care=care) == ["node001 may be used again: the exclusion is over"]
    assert train.queue.excludes == {"12": "node003"}
    assert reconcile(train.arrays, care=care) == []


def test_node_excluded_by_a_person_stays_excluded(train: QueuedTrain, care: NodeCare) -> None:
    train.arrays.exclude("node001", needed=2)
    finalize(train.arrays, train.rules, crash_again(train), care=care)
    train.clock.sleep(72 * 3600)
    assert reconcile(train.arrays, care=care) == []
    assert train.queue.excludes == {"12": "node001"}


def test_end_without_a_cause_is_read(train: QueuedTrain) -> None:
    """An end.json from before diagnoses existed."""
    attempt = crash_attempt(train, BUG)
    ended = finalize(train.arrays, train.rules, attempt)
    fields = json.loads(attempt.end.read_text())
    for key in ("kind", "cause", "suspects", "done"):
        del fields[key]
    attempt.end.write_text(json.dumps(fields))
    assert replace(finalize(train.arrays, train.rules, attempt), kind=ended.kind, cause=ended.cause) == ended
