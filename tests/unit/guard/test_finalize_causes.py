"""What a finalization makes of the cause: nodes are excluded, faults that stay hold the train, the rest goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.diagnosis import causes
from opsctl.diagnosis.causes import CauseKind, Scope
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import Unreachable
from opsctl.guard.finalize import finalize, finalize_ended, find_unfinalized
from opsctl.guard.node_care import NodeCare, find_suspects
from opsctl.guard.outcome import Action, Outcome
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.model import JobState, Node
from opsctl.monitor.reconcile import reconcile
from opsctl.nodes.health.node_state import CheckResult, Health, NodeSnapshot, Severity, Verdict
from opsctl.nodes.history import node_score
from opsctl.state.journal import Event, EventKind, Journal
from opsctl.state.run_dir import Attempt, RunDir
from tests.support.finalized_trains import World, care_of

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = "KeyError: 'lr'"
FULL = "OSError: [Errno 28] No space left on device"
Write = Callable[[str], None]


@pytest.fixture
def care(world: World) -> NodeCare:
    return care_of(world)


def crashed(world: World, line: str, *, task: int = 1, node: str = "node001", minutes: float = 1) -> Attempt:
    """An attempt on this node whose rank 3 said that at its end."""
    attempt = world.began(f"12_{task}.0")
    logs = world.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{node}-3.log").write_text(f"Traceback (most recent call last):\n  at train.py:7\n{line}\n")
    world.exited(attempt, 1, after=minutes * 60)
    return attempt


def events(world: World, kind: EventKind) -> list[Event]:
    return [event for event in world.chain.journal.events() if event.kind is kind]


def test_a_gpu_that_failed_has_its_node_excluded_and_the_train_goes_on(world: World, care: NodeCare) -> None:
    world.queue.excludes["12"] = "node004"
    ended = finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    assert (ended.outcome, ended.action, ended.kind) == (Outcome.CRASHED, Action.EXCLUDE_NODES, CauseKind.GPU)
    assert ended.why == "the body exited with 1; gpu: uncorrectable memory error of a GPU (node001, rank 3)"
    assert world.queue.excludes == {"12": "node[001,004]"}
    assert not any(job.is_held for job in world.queue.waiting)
    [cause] = events(world, EventKind.DIAGNOSED)
    assert (cause.data["class"], cause.data["cause"], cause.data["suspects"]) == ("gpu", "gpu-ecc", ["node001"])
    assert cause.data["evidence"][-1] == ECC
    assert world.kinds()[-4:] == [
        EventKind.DIAGNOSED,
        EventKind.EXCLUDED,
        EventKind.QUARANTINED,
        EventKind.ATTEMPT_FINALIZED,
    ]


def test_what_health_knew_of_the_node_is_in_the_journal_and_so_in_the_alert(world: World, care: NodeCare) -> None:
    result = CheckResult(check="xid", severity=Severity.DEGRADED, evidence="Xid 94")
    verdict = Verdict(node="node001", health=Health.DEGRADED, results=(result,), at=world.clock.now(), by="ssh")
    care.history.save([(NodeSnapshot(node="node001", at=world.clock.now()), verdict)], baseline_hours=24)
    finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    [cause] = events(world, EventKind.DIAGNOSED)
    assert cause.data["also"][0] == "node001 has had 1 finding (xid 1) in the 28 days before"


def test_later_launches_leave_the_node_out_and_the_administrators_have_a_report(world: World, care: NodeCare) -> None:
    ended = finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    [exclusion] = care.exclusions.now()
    assert exclusion.reason == f"opsctl: gpu-ecc: uncorrectable memory error of a GPU: {ECC}"
    assert exclusion.until - exclusion.since == 72 * 3600
    assert exclusion.reason in (care.history.site.nodes / "report.txt").read_text()
    assert ended.done[1].startswith("node001 is not drained; the report for the administrators is in ")


def test_where_too_few_nodes_would_be_left_nothing_is_excluded_and_that_is_said(world: World, care: NodeCare) -> None:
    world.queue.excludes["12"] = "node[002-003]"
    ended = finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    literal = "node001 was not excluded: with node[001-003] excluded 1 nodes are left, and array 12 needs 2"
    assert (ended.action, ended.done) == (Action.CONTINUE, (literal,))
    assert world.queue.excludes == {"12": "node[002-003]"}
    assert (care.exclusions.now(), events(world, EventKind.EXCLUDED)) == ([], [])
    assert events(world, EventKind.QUARANTINED)[0].data["excluded"] is False


def test_a_node_that_was_none_of_the_lifes_is_never_excluded(world: World, care: NodeCare) -> None:
    ended = finalize(world.chain, world.rules, crashed(world, ECC, node="node003"), care=care)
    assert (ended.action, ended.suspects, world.queue.excludes) == (Action.CONTINUE, (), {})


@pytest.mark.parametrize("peer", ["10.0.0.2", "node002", "node002.cluster"])
def test_a_peer_whom_most_ranks_miss_is_excluded_by_its_name_its_host_name_or_its_address(
    world: World, care: NodeCare, peer: str
) -> None:
    attempt = world.began(nodes="node[001-002]")
    text = f"NCCL WARN NET/IB : Got completion from peer {peer}<44206> with status=12 opcode=129 len=65536"
    lines = [f"node001:{pid}:1357 [{pid}] ib.c:1615 {text}\n" for pid in range(3)]
    world.run.main_log.write_text("".join(lines))
    world.exited(attempt, 1)
    ended = finalize(world.chain, world.rules, attempt, care=care)
    assert (ended.kind, ended.suspects, world.queue.excludes) == (CauseKind.NETWORK, ("node002",), {"12": "node002"})


def test_an_address_that_nodes_share_names_none_of_them() -> None:
    diagnosis = Diagnosis(kind=CauseKind.NETWORK, cause="infiniband", says="", scope=Scope.NODE, node="127.0.0.1")
    nodes = [Node(name=name, state="IDLE", address="127.0.0.1") for name in ("node001", "node002")]
    assert find_suspects(diagnosis, "node001", nodes) == ()
    assert find_suspects(diagnosis, "node001", nodes[:1] * 2) == ("node001",)  # of two partitions


def test_a_bug_is_tried_once_more_and_then_holds_what_is_queued(world: World, care: NodeCare) -> None:
    first = finalize(world.chain, world.rules, crashed(world, BUG, minutes=600), care=care)
    assert first.action is Action.CONTINUE
    second = finalize(world.chain, world.rules, crashed(world, BUG, task=2, minutes=600), care=care)
    assert second.action is Action.HOLD_QUEUED
    assert second.why.endswith("a code fault ended 2 attempts in a row without a new checkpoint: python-error")
    assert all(job.is_held for job in world.queue.waiting)
    assert world.queue.excludes == {}


def test_a_disk_that_was_full_for_a_moment_holds_nothing(world: World, care: NodeCare, checkpoint: Write) -> None:
    finalize(world.chain, world.rules, crashed(world, FULL, minutes=600), care=care)
    attempt = world.began("12_2.0")
    checkpoint("step-2")
    assert finalize(world.chain, world.rules, exited(world, attempt, FULL), care=care).action is Action.CONTINUE


def exited(world: World, attempt: Attempt, line: str) -> Attempt:
    (world.run.attempt_logs(attempt.name) / "node001-3.log").write_text(f"{line}\n")
    world.exited(attempt, 1, after=600 * 60)
    return attempt


def test_one_attempt_is_enough_where_the_train_says_so(world: World, care: NodeCare) -> None:
    rules = world.rules.model_copy(update={"fault_attempts": 1})
    assert finalize(world.chain, rules, crashed(world, FULL, minutes=600), care=care).action is Action.HOLD_QUEUED


def test_two_different_faults_are_no_loop(world: World, care: NodeCare) -> None:
    finalize(world.chain, world.rules, crashed(world, FULL, minutes=600), care=care)
    second = finalize(world.chain, world.rules, crashed(world, BUG, task=2, minutes=600), care=care)
    assert second.action is Action.CONTINUE


def test_short_attempts_hold_the_train_also_where_each_lost_a_node(world: World, care: NodeCare) -> None:
    """Else a mistaken cause would take every node of the site, one by one."""
    rules = world.rules.model_copy(update={"short_attempts": 2})
    finalize(world.chain, rules, crashed(world, ECC), care=care)
    ended = finalize(world.chain, rules, crashed(world, ECC, task=2), care=care)
    assert ended.action is Action.HOLD_QUEUED
    assert all(job.is_held for job in world.queue.waiting)


def test_a_node_that_slurm_lost_is_the_one_that_is_down(world: World, care: NodeCare) -> None:
    world.queue.states["node001"] = "DOWN+NOT_RESPONDING"
    attempt = world.began()
    world.row((1,), JobState.NODE_FAIL, restarts=0, end=world.clock.now() + timedelta(minutes=1))
    ended = finalize(world.chain, world.rules, attempt, job=world.queue.rows[-1], care=care)
    assert (ended.outcome, ended.kind, ended.suspects) == (Outcome.NODE_FAILED, CauseKind.NODE, ("node001",))
    assert world.queue.excludes == {"12": "node001"}


CANCELLED = "x\nslurmstepd: error: *** JOB 13 ON node001 CANCELLED AT 2026-03-01T20:00:01 ***"


def hung(world: World, number: int, *, log: str = "") -> Attempt:
    """An attempt of two nodes whose rank 3 is elsewhere, and that the watch has cancelled."""
    attempt = world.began(f"12_{number}.0", nodes="node[001-002]")
    path = attempt.path / "evidence" / "hang-20260301T120000"
    path.mkdir(parents=True)
    for rank in range(4):
        place = "read_batch" if rank == 3 else "all_reduce"
        dump = f'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in {place}\n'
        (path / f"node00{1 + rank // 2}-{rank}.txt").write_text(dump)
    if log:
        world.run.main_log.write_text(f"[node001:1]: {log}\n")
    request_stop(world.run, attempt, StopKind.HUNG, f"{attempt.name} hangs: no sign of life for 20 min")
    world.exited(attempt, 143, after=8 * 3600)
    return attempt


def test_a_attempt_that_hung_says_so_with_the_odd_rank_which_takes_no_node_out(world: World, care: NodeCare) -> None:
    world.run.config.write_text(world.run.config.read_text().replace("nodes = 2", "nodes = 2\nprocesses_per_node = 2"))
    ended = finalize(world.chain, world.rules, hung(world, 1), care=care)
    assert (ended.outcome, ended.action, ended.cause, ended.suspects) == (Outcome.HUNG, Action.CONTINUE, "hang", ())
    odd = "1 rank (node node002: 3) in read_batch at train.py:7"
    assert ended.why == (
        "12_1.0 hangs: no sign of life for 20 min; "
        f"unknown: the attempt hung, odd: {odd} (node002, rank 3)"
    )  # fmt: skip
    assert ended.done == ("recorded node002 as the odd one of a hang, 1 in 28 days",)
    [cause] = events(world, EventKind.DIAGNOSED)
    assert cause.data["evidence"][:2] == [
        odd,
        "3 ranks (node node001: 0-1; node node002: 2) in all_reduce at train.py:7",
    ]
    assert (world.queue.excludes, care.exclusions.now()) == ({}, [])


def test_a_node_that_is_the_odd_one_again_is_suspect_and_after_three_hangs_a_lemon(
    world: World, care: NodeCare
) -> None:
    world.run.config.write_text(world.run.config.read_text().replace("nodes = 2", "nodes = 2\nprocesses_per_node = 2"))
    scores = []
    for number in (1, 2, 3):
        finalize(world.chain, world.rules, hung(world, number), care=care)
        scores.append(node_score(care.history.read("node002"), {}, world.clock.now(), 28))
    assert scores == [0, 4, 6]
    assert care.history.read("node001").hangs == {}
    last = events(world, EventKind.DIAGNOSED)[-1]
    assert "node002 had the odd ranks in 2 hangs in the 28 days before" in last.data["also"]
    assert (world.queue.excludes, events(world, EventKind.QUARANTINED)) == ({}, [])


def test_a_cause_in_the_log_of_a_attempt_that_hung_comes_first(world: World, care: NodeCare) -> None:
    ended = finalize(world.chain, world.rules, hung(world, 1, log=ECC), care=care)
    assert (ended.cause, ended.action, ended.suspects) == ("gpu-ecc", Action.EXCLUDE_NODES, ("node001",))
    [cause] = events(world, EventKind.DIAGNOSED)
    assert any("read_batch" in line for line in cause.data["also"])


def test_a_attempt_that_hung_without_stacks_only_hung(world: World, care: NodeCare) -> None:
    attempt = hung(world, 1, log=CANCELLED)
    shutil.rmtree(attempt.path / "evidence")
    ended = finalize(world.chain, world.rules, attempt, care=care)
    assert (ended.cause, ended.why.partition("; ")[2], ended.done) == ("hang", "unknown: the attempt hung", ())


def test_a_cause_that_nobody_can_find_leaves_all_as_it_was(
    world: World, care: NodeCare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A table of causes that is broken: the finalization is the one of before."""
    attempt = crashed(world, ECC)
    (tmp_path / "causes.toml").write_text("[[cause]\n")
    monkeypatch.setattr(causes, "files", lambda _: tmp_path)
    causes.causes.cache_clear()
    try:
        ended = finalize(world.chain, world.rules, attempt, care=care)
    finally:
        causes.causes.cache_clear()
    assert (ended.outcome, ended.action, ended.kind) == (Outcome.CRASHED, Action.CONTINUE, CauseKind.UNKNOWN)
    assert (ended.why, world.queue.excludes, find_unfinalized(world.run, world.chain.check([]))) == (
        "the body exited with 1",
        {},
        [],
    )
    [cause] = events(world, EventKind.DIAGNOSED)
    assert cause.data["says"].startswith("the diagnosis failed: ")


def test_logs_that_take_too_long_are_left_alone(world: World, care: NodeCare) -> None:
    attempt = crashed(world, ECC)
    with world.run.main_log.open("ab") as log:
        log.truncate(1 << 28)
    ended = finalize(world.chain, world.rules.model_copy(update={"diagnosis_seconds": 0.01}), attempt, care=care)
    assert (ended.action, ended.kind, ended.cause) == (Action.CONTINUE, CauseKind.UNKNOWN, "nothing")


@pytest.mark.parametrize("calls", range(8))
def test_whatever_slurm_leaves_undone_is_done_by_whoever_comes_next(world: World, care: NodeCare, calls: int) -> None:
    attempt = crashed(world, ECC)
    world.queue.breaks_after = calls
    try:
        finalize(world.chain, world.rules, attempt, care=care)
    except Unreachable:
        assert find_unfinalized(world.run, world.chain.check([])) == [attempt]
    world.queue.breaks_after = None
    finalize(world.chain, world.rules, attempt, care=care)
    assert len(events(world, EventKind.DIAGNOSED)) == len(events(world, EventKind.ATTEMPT_FINALIZED)) == 1
    assert world.queue.excludes == {"12": "node001"}


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@pytest.mark.parametrize("writes", range(5))
def test_a_finalization_killed_before_any_of_its_writes_excludes_once(
    world: World, care: NodeCare, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    attempt, left = crashed(world, ECC), writes
    literal = "excluded node001 for queued tasks and later launches, until "

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
            finalize(world.chain, world.rules, attempt, care=care)
    assert not attempt.end.exists()
    finalize(world.chain, world.rules, attempt, care=care)
    assert len(events(world, EventKind.DIAGNOSED)) == len(events(world, EventKind.ATTEMPT_FINALIZED)) == 1
    assert (world.queue.excludes, world.end(attempt)["action"]) == ({"12": "node001"}, "exclude-nodes")
    assert len(care.exclusions.now()) == 1
    assert world.end(attempt)["done"][0].startswith(literal)


def test_a_round_finalizes_with_the_cause_too(world: World, care: NodeCare) -> None:
    crashed(world, ECC)
    assert "exclude-nodes" in reconcile(world.chain, care=care)[0]
    [ended] = finalize_ended(world.chain, world.rules, world.chain.check(), care=care) or [None]
    assert ended is None


def test_a_node_is_given_back_to_what_is_queued_when_its_exclusion_is_over(world: World, care: NodeCare) -> None:
    world.chain.exclude("node003", needed=2)
    finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    assert reconcile(world.chain, care=care) == []
    world.clock.sleep(72 * 3600)
    assert reconcile(world.chain, care=care) == ["node001 may be used again: the exclusion is over"]
    assert world.queue.excludes == {"12": "node003"}
    assert reconcile(world.chain, care=care) == []


def test_a_node_that_a_person_excluded_stays_excluded(world: World, care: NodeCare) -> None:
    world.chain.exclude("node001", needed=2)
    finalize(world.chain, world.rules, crashed(world, ECC), care=care)
    world.clock.sleep(72 * 3600)
    assert reconcile(world.chain, care=care) == []
    assert world.queue.excludes == {"12": "node001"}


def test_an_older_end_says_what_it_said(world: World) -> None:
    """end.json of before causes were asked for."""
    attempt = crashed(world, BUG)
    ended = finalize(world.chain, world.rules, attempt)
    text = attempt.end.read_text()
    for key in ("kind", "cause", "suspects", "done"):
        assert f'"{key}"' in text
    lines = [
        line
        for line in text.splitlines()
        if not any(f'"{key}"' in line for key in ("kind", "cause", "suspects", "done"))
    ]
    attempt.end.write_text(
        "\n".join(lines).replace('"new_checkpoint": false,', '"new_checkpoint": false').replace(" ]\n", "\n")
    )
    assert replace(finalize(world.chain, world.rules, attempt), kind=ended.kind, cause=ended.cause) == ended
