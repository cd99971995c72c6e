"""`opsctl why` on a run directory, and on logs alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Invoked

from opsctl.cli.why import why
from opsctl.errors import InputError
from opsctl.guard.finalize import finalize
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.model import JobState
from opsctl.nodes.health.node_state import CheckResult, Health, NodeSnapshot, Severity, Verdict
from opsctl.nodes.history import NodeHistory
from opsctl.settings.loader import SiteSettings
from opsctl.state.journal import Journal
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import TrainerStop
from tests.support.clocks import FakeClock
from tests.support.finalized_trains import World, make_node_care, make_world
from tests.unit.diagnosis.conftest import LOST, Log, real


@dataclass
class App:
    world: World

    def find(self, train: str) -> RunDir:
        return self.world.run

    def journal(self, run: RunDir) -> Journal:
        return self.world.chain.journal

    @property
    def scheduler(self) -> object:
        return self.world.queue

    @property
    def clock(self) -> FakeClock:
        return self.world.clock

    @property
    def history(self) -> NodeHistory:
        return NodeHistory(site=SiteDir(self.world.run.path.parent / ".site"), clock=self.world.clock)

    site = SiteSettings(root="/nowhere")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = make_world(tmp_path)
    made.run.config.write_text(
        'name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 2\nprocesses_per_node = 2\ntime_limit = "10"\n'
    )
    return made


def call(world: World, *args: str) -> Invoked:
    return CliRunner(catch_exceptions=False).invoke(why, args, obj=App(world))


def ask(world: World, *args: str) -> dict[str, object]:
    return json.loads(call(world, *args, "--json").stdout)


def says(world: World, *lines: str) -> None:
    with world.run.main_log.open("a") as log:
        log.write("".join(f"{line}\n" for line in lines))


def test_a_crash_is_told_with_place_proof_and_what_to_do(world: World) -> None:
    attempt = world.start_attempt("12_1.0")
    says(world, *(f"[node002:3]: {line}" for line in real("tr1-13b-ecc.txt").splitlines()), f"[node001:0]: {LOST}")
    world.end_body(attempt, 1)
    lines = call(world, "gpt").stdout.splitlines()
    assert lines[:3] == [
        "gpt 12_1.0: gpu: uncorrectable memory error of a GPU",
        "  where  node node002, rank 3",
        "  when   after iteration 43680",
    ]
    assert lines[6].endswith("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    assert lines[8:10] == [
        "  also   ranks lost their connection to another rank (1 rank)",
        f"  log    {world.run.main_log}",
    ]
    assert lines[10].startswith("  do     Exclude the node; reset the GPU")
    assert lines[11] == "         opsctl release gpt --exclude node002"


def test_the_next_crash_on_the_same_node_says_so(world: World) -> None:
    world.end_body(_crashed(world, "12_1.0", "tr1-13b-ecc.txt"), 1)
    world.end_body(_crashed(world, "12_2.0", "tr1-13b-out-of-memory-at-barrier.txt"), 1)
    fields = ask(world, "gpt")
    assert (fields["attempt"], fields["cause"], fields["node"]) == ("12_2.0", "gpu-memory-taken", "node002")
    assert fields["also"] == ["the same node ended 12_1.0: uncorrectable memory error of a GPU"]


def test_an_earlier_task_is_told_from_its_own_part_of_the_log(world: World) -> None:
    world.end_body(_crashed(world, "12_1.0", "tr1-13b-ecc.txt"), 1)
    world.end_body(_crashed(world, "12_2.0", "tr1-13b-bus-error.txt"), 1)
    assert ask(world, "gpt", "--task", "1")["cause"] == "gpu-ecc"
    assert ask(world, "gpt", "--task", "2")["cause"] == "shared-memory-full"


def _crashed(world: World, name: str, corpus: str, **more: str) -> Attempt:
    """An attempt that began when main_log was as long as it is."""
    attempt = world.start_attempt(name, **more)  # type: ignore[arg-type]  # handed on
    log = world.run.main_log
    start = json.loads(attempt.start.read_text()) | {"main_log": log.stat().st_size if log.exists() else 0}
    attempt.start.write_text(json.dumps(start))
    says(world, *(f"[node002:3]: {line}" for line in real(corpus).splitlines()))
    return attempt


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (TrainerStop.FINISHED, "none"),
        (TrainerStop.KILL, "switch"),
        (TrainerStop.PAUSE, "switch"),
        (TrainerStop.DEADLINE, "time limit"),
        (TrainerStop.NAN, "data"),
        (TrainerStop.MEMORY, "memory"),
    ],
)
def test_the_trainers_own_word_needs_no_log(world: World, reason: TrainerStop, kind: str) -> None:
    attempt = world.start_attempt()
    says(world, f"[node001:0]: {LOST}")
    world.stop_trainer(attempt, reason)
    world.end_body(attempt, 0)
    assert ask(world, "gpt")["kind"] == kind


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (JobState.TIMEOUT, "time limit"),
        (JobState.PREEMPTED, "preempted"),
        (JobState.NODE_FAIL, "node"),
        (JobState.CANCELLED, "switch"),
        (JobState.FAILED, "unknown"),
    ],
)
def test_slurms_word_is_taken_where_no_log_explains_more(world: World, state: JobState, kind: str) -> None:
    attempt = world.start_attempt()
    world.row((1,), state)
    assert ask(world, "gpt")["kind"] == kind
    finalize(world.chain, world.rules, attempt, job=world.queue.rows[-1])
    world.queue.rows.clear()
    assert ask(world, "gpt")["kind"] == kind


def test_what_the_guard_saw_and_did_when_it_finalized_a_attempt_is_told_with_it(world: World) -> None:
    world.queue.states["node001"] = "DOWN+NOT_RESPONDING"
    attempt = world.start_attempt("12_1.0", nodes="node[001-002]")
    world.row((1,), JobState.NODE_FAIL, end=world.clock.now() + timedelta(minutes=1))
    finalize(world.chain, world.rules, attempt, job=world.queue.rows[-1], care=make_node_care(world))
    world.queue.states.clear()
    fields = ask(world, "gpt")
    assert (fields["says"], fields["node"]) == ("Slurm lost a node", "node001")
    excluded = "excluded node001 for queued tasks and later launches, until 2026-03-04 12:00 UTC"
    assert fields["done"] == [excluded]
    text = call(world, "gpt").stdout
    assert "  where  node node001\n" in text
    assert f"  done   {excluded}\n  do     " in text
    assert "opsctl release" not in text


def test_a_task_that_opsctl_cancelled_because_it_hung_was_not_cancelled_by_somebody(world: World) -> None:
    attempt = world.start_attempt()
    request_stop(world.run, attempt, StopKind.HUNG, "12_1.0 hangs")
    world.row((1,), JobState.CANCELLED)
    assert ask(world, "gpt")["cause"] == "hang"
    finalize(world.chain, world.rules, attempt, job=world.queue.rows[-1])
    assert ask(world, "gpt")["says"] == "the attempt hung"


def test_where_slurm_does_not_answer_the_log_still_tells(world: World) -> None:
    world.end_body(_crashed(world, "12_1.0", "tr1-13b-ecc.txt"), 1)
    world.queue.breaks_after = 0
    assert ask(world, "gpt")["cause"] == "gpu-ecc"


def test_what_main_log_lost_is_read_from_the_ranks_own_log(world: World) -> None:
    attempt = world.start_attempt()
    (world.run.attempt_logs(attempt.name) / "node002-3.log").write_text(real("tr1-13b-ecc.txt"))
    world.end_body(attempt, 1)
    fields = ask(world, "gpt")
    assert (fields["cause"], fields["node"], fields["rank"]) == ("gpu-ecc", "node002", 3)


def test_a_attempt_that_goes_on_has_no_end(world: World) -> None:
    world.start_attempt()
    world.row((1,), JobState.RUNNING)
    with pytest.raises(InputError, match="gpt: no attempt has ended"):
        call(world, "gpt")
    with pytest.raises(InputError, match="gpt: no attempt of task 7 has ended"):
        call(world, "gpt", "--task", "7")


def looked(world: World, node: str, evidence: str = "") -> None:
    """Somebody looks at a node now."""
    at = world.clock.now()
    rows = (CheckResult(check="remapped_rows", severity=Severity.DEGRADED, evidence=evidence),) if evidence else ()
    health = Health.DEGRADED if evidence else Health.HEALTHY
    verdict = Verdict(node=node, health=health, results=rows, at=at, by="ssh")
    App(world).history.save([(NodeSnapshot(node=node, at=at), verdict)], baseline_hours=24)


def test_what_health_knew_of_the_first_causes_node_is_told_beside_it(world: World) -> None:
    looked(world, "node002", "1 row pending")
    world.end_body(_crashed(world, "12_1.0", "tr1-13b-ecc.txt", nodes="node[001-002]"), 1, after=3 * 3600)
    assert ask(world, "gpt")["also"] == [
        "node002 has had 1 finding (remapped_rows 1) in the 28 days before",
        "node002 was already degraded, at the check 3h before: remapped_rows: 1 row pending",
    ]
    assert "  also   node002 has had 1 finding" in call(world, "gpt").stdout


def test_where_no_log_names_a_cause_the_nodes_of_that_attempt_are_told_of(world: World) -> None:
    for node, evidence in (("node001", ""), ("node003", "1 row pending"), ("node004", "1 row pending")):
        looked(world, node, evidence)
    attempt = world.start_attempt("12_1.0", nodes="node[001-003]")
    says(world, "nothing to see")
    world.end_body(attempt, 1, after=600)
    fields = ask(world, "gpt")
    assert (fields["cause"], fields["suspects"]) == ("nothing", [])
    assert fields["also"] == [
        "node003 was already degraded, at the check 10m before: remapped_rows: 1 row pending",
        "healthy at the last check before: node001",
        "no health check stored of node002; run opsctl health node002",
    ]


def test_a_history_that_cannot_be_read_leaves_the_cause_as_it_was(world: World) -> None:
    looked(world, "node002", "1 row pending")
    path = world.run.path.parent / ".site" / "nodes" / "node" / "node002.json"
    path.write_text(path.read_text().replace('"at":', '"at":"x","not":'))
    world.end_body(_crashed(world, "12_1.0", "tr1-13b-ecc.txt", nodes="node[001-002]"), 1)
    assert ask(world, "gpt")["cause"] == "gpu-ecc"
    path.write_text('{"node":"node002","incidents":[' + json.dumps(BROKEN) + "]}")
    fields = ask(world, "gpt")
    assert fields["cause"] == "gpu-ecc"
    assert "cannot be read" in fields["also"][0]  # type: ignore[index]  # a list


BROKEN = {"at": "x", "last": None, "count": 1, "node": "n", "check": "", "severity": "", "evidence": ""}


def test_a_log_alone(world: World, log: Log) -> None:
    log.steps(1, 2).say(41, real("tr1-13b-ecc.txt"))
    assert call(world, "--log", str(log.write())).stdout.startswith(
        "gpu: uncorrectable memory error of a GPU\n  where  node r10i0n5"
    )


def test_a_train_or_a_log(world: World) -> None:
    assert "not both" in call(world).output
