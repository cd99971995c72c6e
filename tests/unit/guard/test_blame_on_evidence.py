"""Finalize excludes a node only on evidence about this node."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.attempt_record import read_start, write_start
from opsctl.guard.cause import load_attempt_logs
from opsctl.guard.end_record import Action, FinishedAttempt
from opsctl.guard.finalize import finalize
from opsctl.guard.node_care import NodeCare
from opsctl.host.system import SystemRunner
from opsctl.nodes.remote.fanout import Fanout, Local
from opsctl.state.events import Diagnosed, ExclusionDecided
from tests.support.finalized_trains import QueuedTrain, make_node_care, make_train
from tests.support.made_nodes import render_smi

NODES = tuple(f"node00{number}" for number in range(1, 5))
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
PINNED = (
    "Traceback (most recent call last):",
    '  File "/opt/env/torch/utils/data/_utils/pin_memory.py", line 98, in pin_memory',
    "    clone[i] = pin_memory(item, device)",
    "RuntimeError: CUDA error: out of memory",
)
MISMATCH = ("Failed to initialize NVML: Driver/library version mismatch",)
"""The log names the node, and no driver, kernel or Slurm wrote it: a suspicion."""
PORT = (
    "Traceback (most recent call last):",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
    " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
)
CORPUS = Path(__file__).parents[2] / "corpus" / "failures" / "tuning.jsonl"


@pytest.fixture
def care(train: QueuedTrain) -> NodeCare:
    return make_node_care(train)


@pytest.fixture
def looking_care(train: QueuedTrain, care: NodeCare, tmp_path: Path) -> NodeCare:
    """Node care whose nodes are this machine, where nvidia-smi prints two healthy GPUs."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "smi.xml").write_text(render_smi(2))
    programs = {"nvidia-smi": f'[ "$*" != "-q -x" ] || cat {tmp_path}/smi.xml', "dmesg": "exit 0"}
    for name, action in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{action}\n")
        (tools / name).chmod(0o755)
    return reach_here(care, SystemRunner(env={"PATH": f"{tools}:{os.environ['PATH']}"}))


def reach_here(care: NodeCare, runner: SystemRunner, *, connect_s: float = 1.0) -> NodeCare:
    local = Local(runner=runner, names=NODES)
    return replace(care, reach=lambda jobs, idle: Fanout(shells=[local]), connect_s=connect_s)


def crash(
    train: QueuedTrain, lines: Sequence[str], *, task: int = 1, node: str = "node001", minutes: float = 60
) -> str:
    """End an attempt on all nodes, of which a rank on `node` logged `lines`. Return the name of the attempt."""
    attempt = train.start_attempt(f"12_{task}.0", nodes="node[001-004]")
    logs = train.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{node}-3.log").write_text("\n".join(lines) + "\n")
    train.end_body(attempt, 1, after=minutes * 60)
    return attempt.name


def end(train: QueuedTrain, care: NodeCare, attempt: str) -> FinishedAttempt:
    return finalize(train.arrays, train.rules, train.run.attempt(attempt), care=care)


def test_memory_that_cannot_be_pinned_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    ended = end(train, care, crash(train, PINNED))
    assert (ended.action, ended.cause, ended.suspects) == (Action.CONTINUE, "pinned-memory-full", ())
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])


def test_unknown_health_acquits_with_a_reason(train: QueuedTrain, care: NodeCare) -> None:
    ended = end(train, care, crash(train, MISMATCH))
    assert (ended.action, ended.suspects, train.queue.excludes) == (Action.CONTINUE, (), {})
    assert ended.done == (
        "did not exclude node001: its health is unknown, and the log alone is no evidence:"
        " a file system that hangs gives the same messages on every node",
    )
    assert train.end(train.run.attempt("12_1.0"))["done"] == list(ended.done)


def test_taken_port_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    """Another job on one node may hold the port, so the train goes on, until short attempts hold it."""
    endings = [end(train, care, crash(train, PORT, task=task)) for task in (1, 2)]
    assert {(ended.kind, ended.cause, ended.action) for ended in endings} == {
        (CauseKind.CONFIG, "port-in-use", Action.CONTINUE)
    }
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])


def complain(train: QueuedTrain, voices: Sequence[str], peer: str) -> str:
    """End an attempt in which a rank on each of `voices` could not connect to `peer`."""
    attempt = train.start_attempt(nodes="node[001-004]")
    line = (
        "{}:77:81 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {}<44206> failed : Software error\n"
    )
    train.run.main_log.write_text("".join(line.format(voice, peer) for voice in voices))
    train.end_body(attempt, 1, after=3600)
    return attempt.name


def test_one_complaint_about_a_peer_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    ended = end(train, care, complain(train, ["node001"], "10.0.0.2"))
    assert (ended.kind, ended.suspects, train.queue.excludes) == (CauseKind.NETWORK, (), {})
    assert ended.done == ("did not exclude node002: 1 of the 2 other nodes needed complain about it",)


def test_wrong_interface_everywhere_excludes_nothing(train: QueuedTrain) -> None:
    """Every rank complains about the first node, because NCCL_SOCKET_IFNAME names an interface without a network."""
    train.queue.addresses = {name: f"127.0.0.{name[-1]}" for name in NODES}
    care = reach_here(make_node_care(train), SystemRunner(env={"PATH": "/nowhere"}), connect_s=30.0)
    ended = end(train, care, complain(train, NODES, "127.0.0.1"))
    assert (ended.suspects, train.queue.excludes) == ((), {})
    assert ended.done == ("did not exclude node001: the connection test passed",)


def test_untested_connection_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    ended = end(train, care, complain(train, NODES, "10.0.0.1"))
    assert (ended.suspects, train.queue.excludes) == ((), {})
    assert ended.done[0].endswith("the connection to it could not be tested; opsctl test-nodes tests the nodes")


@pytest.mark.parametrize("peer", ["::1", "node002.cluster"])
def test_node_cut_off_from_two_others_is_excluded(train: QueuedTrain, care: NodeCare, peer: str) -> None:
    """The test's listener opens IPv4 only, so that node002 does not answer at its address."""
    train.queue.addresses = {name: f"127.0.0.{name[-1]}" for name in NODES} | {"node002": "::1"}
    here = reach_here(care, SystemRunner(env={"PATH": "/nowhere"}))
    ended = end(train, here, complain(train, ["node001", "node003"], peer))
    assert (ended.action, ended.suspects) == (Action.EXCLUDE_NODES, ("node002",))
    assert train.queue.excludes == {"12": "node002"}


ALL_CLEAR = "volatile uncorrectable ECC errors = 0, all GPUs fine"
BUG = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "KeyError: 'learning_rate'")


def crash_everywhere(train: QueuedTrain, lines: Sequence[str], *, task: int = 1) -> str:
    """End an attempt on all nodes, of which a rank on each logged `lines`."""
    attempt = train.start_attempt(f"12_{task}.0", nodes="node[001-004]")
    logs = train.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    for rank, node in enumerate(NODES):
        (logs / f"{node}-{rank}.log").write_text("\n".join(lines) + "\n")
    train.end_body(attempt, 1, after=3600)
    return attempt.name


def test_all_clear_in_every_log_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    """Ranks print a healthy check at their start, and then the program fails."""
    for task in (1, 2, 3):
        ended = end(train, care, crash_everywhere(train, [ALL_CLEAR, *BUG], task=task))
        assert (ended.kind, ended.suspects) == (CauseKind.CODE, ())
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])


def test_log_alone_makes_suspect_and_a_second_attempt_excludes(train: QueuedTrain, care: NodeCare) -> None:
    first = end(train, care, crash(train, [ECC]))
    assert (first.action, first.suspects, train.queue.excludes) == (Action.CONTINUE, (), {})
    assert first.done[0].startswith("did not exclude node001: its health is unknown, and the log alone is no evidence")
    second = end(train, care, crash(train, [ECC], task=2))
    assert (second.action, train.queue.excludes) == (Action.EXCLUDE_NODES, {"12": "node001"})


def test_message_that_wanders_from_node_to_node_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    for task, node in enumerate(("node001", "node002", "node001", "node003"), start=1):
        assert end(train, care, crash(train, [ECC], task=task, node=node)).suspects == ()
    assert end(train, care, crash(train, [ECC], task=5, node="node003")).suspects == ("node003",)


def test_same_message_on_every_node_has_one_cause(train: QueuedTrain, care: NodeCare) -> None:
    for task in (1, 2, 3):
        ended = end(train, care, crash_everywhere(train, [ECC], task=task))
        assert (ended.cause, ended.suspects) == ("gpu-ecc", ())
        assert ended.done == ("did not exclude node[001-004]: the same line on 4 nodes has one cause, not 4 bad nodes",)
    assert (train.queue.excludes, care.exclusions.now()) == ({}, [])


NODE_FAILURE = "slurmstepd: error: *** JOB 3 ON node001 CANCELLED AT 2026-03-01T20:00:01 DUE TO NODE FAILURE ***"
"""Slurm prints this line on a node that is left."""


def test_printed_node_failure_excludes_nothing(train: QueuedTrain, care: NodeCare) -> None:
    ended = end(train, care, crash(train, [NODE_FAILURE]))
    assert (ended.cause, ended.suspects, train.queue.excludes) == ("node-failure", (), {})


def test_node_that_slurm_lost_is_excluded(train: QueuedTrain, care: NodeCare) -> None:
    train.queue.states["node002"] = "DOWN+NOT_RESPONDING"
    ended = end(train, care, crash(train, [NODE_FAILURE]))
    assert (ended.action, train.queue.excludes) == (Action.EXCLUDE_NODES, {"12": "node002"})


def test_exclusions_of_a_day_have_a_limit(train: QueuedTrain, care: NodeCare) -> None:
    care = replace(care, site=care.site.model_copy(update={"exclude_per_day": 1}))
    care.exclusions.add([("node004", "opsctl: xid: Xid 79")], hours=1)
    for task in (1, 2):
        ended = end(train, care, crash(train, [ECC], task=task, minutes=600))
    assert (ended.action, ended.done, train.queue.excludes) == (
        Action.CONTINUE,
        ("node001 was not excluded: [health] exclude_per_day allows 1 in 24 h, with 1 excluded so far",),
        {},
    )
    assert [event.excluded for event in train.arrays.journal.events() if isinstance(event, ExclusionDecided)] == [False]
    train.clock.sleep(86_400)
    assert end(train, care, crash(train, [ECC], task=3)).action is Action.EXCLUDE_NODES


def test_healthy_check_overrules_one_message(train: QueuedTrain, looking_care: NodeCare) -> None:
    first = end(train, looking_care, crash(train, [ECC]))
    assert (first.action, first.suspects, train.queue.excludes) == (Action.CONTINUE, (), {})
    assert first.done == ("did not exclude node001: its health check found no fault",)
    second = end(train, looking_care, crash(train, [ECC], task=2))
    assert (second.action, train.queue.excludes) == (Action.EXCLUDE_NODES, {"12": "node001"})


def test_suspicion_that_follows_a_node_excludes_it(train: QueuedTrain, care: NodeCare) -> None:
    """Three attempts with node001 end by the same suspicion, one attempt without node001 ends otherwise."""
    for task in (1, 2):
        assert end(train, care, crash(train, MISMATCH, task=task)).suspects == ()
    attempt = train.start_attempt("12_3.0", nodes="node[002-003]")
    train.end_body(attempt, 0, after=3600)
    end(train, care, attempt.name)
    assert end(train, care, crash(train, MISMATCH, task=4)).suspects == ("node001",)


def test_suspicion_of_several_nodes_follows_none(train: QueuedTrain, care: NodeCare) -> None:
    attempt = train.start_attempt("12_1.0", nodes="node[003-004]")
    train.end_body(attempt, 0, after=3600)
    end(train, care, attempt.name)
    for task, node in enumerate(("node001", "node002", "node001", "node001"), start=2):
        assert end(train, care, crash(train, MISMATCH, task=task, node=node)).suspects == ()


def test_evidence_is_journalled(train: QueuedTrain, care: NodeCare) -> None:
    end(train, care, crash(train, MISMATCH))
    [cause] = [event for event in train.arrays.journal.events() if isinstance(event, Diagnosed)]
    assert (cause.suspects, cause.accused) == ((), ("node001",))
    assert cause.acquitted[0].startswith("did not exclude node001: ")


def read_innocent_cases() -> list[list[str]]:
    innocent = {"code", "data", "storage", "config"}
    cases = map(json.loads, CORPUS.read_text().splitlines())
    return [case["lines"] for case in cases if case["class"] in innocent and case["scope"] == "none"]


failures = st.tuples(st.sampled_from(read_innocent_cases()), st.sampled_from(NODES[:2]), st.sampled_from([1.0, 600.0]))


@settings(max_examples=12, deadline=None)
@given(sequence=st.lists(failures, min_size=1, max_size=4))
def test_no_sequence_of_innocent_failures_excludes(sequence: list[tuple[list[str], str, float]]) -> None:
    """Failures of code, data, storage and configuration, from public logs, on nodes whose health is unknown."""
    with tempfile.TemporaryDirectory() as place:
        train = make_train(Path(place))
        care = make_node_care(train)
        for task, (lines, node, minutes) in enumerate(sequence, start=1):
            end(train, care, crash(train, lines, task=task, node=node, minutes=minutes))
        assert train.queue.excludes == {}
        assert care.exclusions.now() == []
        assert ExclusionDecided not in train.event_kinds()


def test_logs_of_earlier_attempts_are_those_before_the_attempt(train: QueuedTrain) -> None:
    names = [f"12_{task}.0" for task in range(1, 7)]
    for number, name in enumerate(names):
        attempt = train.start_attempt(name)
        start = read_start(attempt)
        assert start is not None
        write_start(train.run, attempt, replace(start, main_log=100 * number))
    logs = load_attempt_logs(train.run, names[4], names, None)
    assert (logs.begin, logs.end, logs.earlier) == (400, 500, ((100, 200), (200, 300), (300, 400)))
    assert load_attempt_logs(train.run, names[0], names, None).earlier == ()


@pytest.mark.parametrize(("others", "suspects"), [((), ("node001",)), (("node002",), ())])
def test_node_that_logs_of_all_trains_name_over_weeks_is_excluded(
    train: QueuedTrain, care: NodeCare, others: Sequence[str], suspects: Sequence[str]
) -> None:
    for number, node in enumerate(("node001", "node001", *others)):
        care.history.note_named([node], "gpu-ecc", f"other/7_{number}.0", train.clock.now() - timedelta(days=9))
    assert end(train, care, crash(train, [ECC])).suspects == suspects


@pytest.mark.parametrize(("minutes", "suspects"), [(5, ()), (15, ("node001",))])
def test_same_line_in_several_trains_at_once_convicts_no_node(
    train: QueuedTrain, care: NodeCare, minutes: float, suspects: Sequence[str]
) -> None:
    attempts = [crash(train, [ECC], task=task) for task in (1, 2)]
    end(train, care, attempts[0])
    ended = train.clock.now()
    for node in ("node008", "node009"):
        care.history.note_named([node], "gpu-ecc", "other/7_1.0", ended - timedelta(minutes=minutes))
    assert end(train, care, attempts[1]).suspects == suspects
