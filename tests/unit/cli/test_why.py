"""`opsctl why` on a run directory and on a log alone, and collectives named from dumps of the flight recorder."""

import json
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Invoked

from opsctl.base.errors import InputError
from opsctl.base.model import JobState
from opsctl.cli.logs import logs
from opsctl.cli.stacks import stacks
from opsctl.cli.why import why
from opsctl.diagnosis.flight_recorder import describe_dumps, read_dumps
from opsctl.guard.finalize import finalize
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity, Health, NodeSnapshot, Verdict
from opsctl.nodes.history import NodeHistory
from opsctl.settings.loader import SiteSettings
from opsctl.state.archive import pack
from opsctl.state.journal import Journal
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import TrainerStop
from tests.support.cases import read_cases
from tests.support.clocks import FakeClock
from tests.support.finalized_trains import QueuedTrain, make_node_care, make_train
from tests.unit.diagnosis.conftest import LOST, Log, read_corpus


@dataclass
class FakeApp:
    train: QueuedTrain

    def find(self, train: str) -> RunDir:
        return self.train.run

    def journal(self, run: RunDir) -> Journal:
        return self.train.arrays.journal

    @property
    def slurm(self) -> object:
        return self.train.queue

    @property
    def clock(self) -> FakeClock:
        return self.train.clock

    @property
    def history(self) -> NodeHistory:
        return NodeHistory(site=SiteDir(self.train.run.path.parent / ".site"), clock=self.train.clock)

    site = SiteSettings(root="/nowhere")


@pytest.fixture
def train(tmp_path: Path) -> QueuedTrain:
    train = make_train(tmp_path)
    train.run.config.write_text(
        'name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 2\nprocesses_per_node = 2\ntime_limit = "10"\n'
    )
    return train


def call(train: QueuedTrain, *args: str) -> Invoked:
    return CliRunner(catch_exceptions=False).invoke(why, args, obj=FakeApp(train))


def ask_json(train: QueuedTrain, *args: str) -> dict[str, object]:
    return json.loads(call(train, *args, "--json").stdout)


def append_log(train: QueuedTrain, *lines: str) -> None:
    with train.run.main_log.open("a") as log:
        log.write("".join(f"{line}\n" for line in lines))


def test_crash_shows_place_evidence_and_remedy(train: QueuedTrain) -> None:
    attempt = train.start_attempt("12_1.0")
    append_log(
        train, *(f"[node002:3]: {line}" for line in read_corpus("tr1-13b-ecc.txt").splitlines()), f"[node001:0]: {LOST}"
    )
    train.end_body(attempt, 1)
    lines = call(train, "gpt").stdout.splitlines()
    assert lines[:3] == [
        "gpt 12_1.0: gpu: uncorrectable memory error of a GPU",
        "  where  node node002, rank 3",
        "  when   after iteration 43680",
    ]
    assert lines[6].endswith("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    assert lines[8:10] == [
        "  also   ranks lost their connection to another rank (1 rank)",
        f"  log    {train.run.main_log}; opsctl logs gpt --at {ask_json(train, 'gpt')['place']}",
    ]
    assert lines[10].startswith("  test   proved by opsctl health NODE")
    assert lines[11].startswith("  do     Exclude the node; reset the GPU")
    assert lines[12] == "         opsctl release gpt --exclude node002"


def test_second_crash_on_the_same_node_is_noted(train: QueuedTrain) -> None:
    train.end_body(_crash_attempt(train, "12_1.0", "tr1-13b-ecc.txt"), 1)
    train.end_body(_crash_attempt(train, "12_2.0", "tr1-13b-out-of-memory-at-barrier.txt"), 1)
    fields = ask_json(train, "gpt")
    assert (fields["attempt"], fields["cause"], fields["node"]) == ("12_2.0", "gpu-memory-taken", "node002")
    assert fields["also"] == ["the same node ended 12_1.0: uncorrectable memory error of a GPU"]


def test_earlier_task_has_its_own_part_of_the_log(train: QueuedTrain) -> None:
    train.end_body(_crash_attempt(train, "12_1.0", "tr1-13b-ecc.txt"), 1)
    train.end_body(_crash_attempt(train, "12_2.0", "tr1-13b-bus-error.txt"), 1)
    assert ask_json(train, "gpt", "--task", "1")["cause"] == "gpu-ecc"
    assert ask_json(train, "gpt", "--task", "2")["cause"] == "shared-memory-full"


def _crash_attempt(train: QueuedTrain, name: str, corpus: str, **more: str) -> Attempt:
    """Start an attempt whose part of main_log begins at the present end of the log, and log a crash."""
    attempt = train.start_attempt(name, **more)  # type: ignore[arg-type]  # handed on
    log = train.run.main_log
    start = json.loads(attempt.start.read_text()) | {"main_log": log.stat().st_size if log.exists() else 0}
    attempt.start.write_text(json.dumps(start))
    append_log(train, *(f"[node002:3]: {line}" for line in read_corpus(corpus).splitlines()))
    return attempt


def test_packed_logs_of_ranks_are_read_under_their_own_names(train: QueuedTrain) -> None:
    attempt = train.start_attempt("12_1.0")
    log = train.run.attempt_logs("12_1.0") / "node002-3.log"
    log.write_text(read_corpus("tr1-13b-ecc.txt"))
    train.end_body(attempt, 1)
    before = ask_json(train, "gpt")
    pack(log.parent, [log])
    log.unlink()
    assert ask_json(train, "gpt") == before
    assert (before["cause"], before["log"]) == ("gpu-ecc", str(log))


@pytest.mark.parametrize(*read_cases(__file__, "stop_reason_of_the_trainer_needs_no_log", reason=TrainerStop))
def test_stop_reason_of_the_trainer_needs_no_log(train: QueuedTrain, reason: TrainerStop, kind: str) -> None:
    attempt = train.start_attempt()
    append_log(train, f"[node001:0]: {LOST}")
    train.stop_trainer(attempt, reason)
    train.end_body(attempt, 0)
    assert ask_json(train, "gpt")["kind"] == kind


@pytest.mark.parametrize(*read_cases(__file__, "slurm_state_is_used_without_a_log", state=JobState))
def test_slurm_state_is_used_without_a_log(train: QueuedTrain, state: JobState, kind: str) -> None:
    attempt = train.start_attempt()
    train.add_row((1,), state)
    assert ask_json(train, "gpt")["kind"] == kind
    finalize(train.arrays, train.rules, attempt, job=train.queue.rows[-1])
    train.queue.rows.clear()
    assert ask_json(train, "gpt")["kind"] == kind


def test_planned_exit_with_0_is_not_unknown(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    append_log(train, "[node001:0]: exiting program after 10 minutes")
    train.end_body(attempt, 0)
    finalize(train.arrays, train.rules, attempt)
    fields = ask_json(train, "gpt")
    assert (fields["kind"], fields["says"]) == ("none", "the body exited with 0, and the training is to go on")


def test_error_outweighs_an_exit_with_0(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    append_log(train, "[node001:0]: exiting program after 10 minutes", "[node001:0]: KeyError: 'tokens'")
    train.end_body(attempt, 0)
    finalize(train.arrays, train.rules, attempt)
    assert ask_json(train, "gpt")["cause"] == "python-error"


def test_actions_of_the_guard_are_shown(train: QueuedTrain) -> None:
    train.queue.states["node001"] = "DOWN+NOT_RESPONDING"
    attempt = train.start_attempt("12_1.0", nodes="node[001-002]")
    train.add_row((1,), JobState.NODE_FAIL, end=train.clock.now() + timedelta(minutes=1))
    finalize(train.arrays, train.rules, attempt, job=train.queue.rows[-1], care=make_node_care(train))
    train.queue.states.clear()
    fields = ask_json(train, "gpt")
    assert (fields["says"], fields["node"]) == ("Slurm lost a node", "node001")
    excluded = "excluded node001 for queued tasks and later launches, until 2026-03-04 12:00 UTC"
    assert fields["done"] == [excluded]
    text = call(train, "gpt").stdout
    assert "  where  node node001\n" in text
    assert f"  done   {excluded}\n  do     " in text
    assert "opsctl release" not in text


def test_hung_attempt_is_not_shown_as_cancelled(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    request_stop(train.run, attempt, StopKind.HUNG, "12_1.0 hangs")
    train.add_row((1,), JobState.CANCELLED)
    assert ask_json(train, "gpt")["cause"] == "hang"
    finalize(train.arrays, train.rules, attempt, job=train.queue.rows[-1])
    assert ask_json(train, "gpt")["says"] == "the attempt hung"


def test_cause_is_found_without_slurm(train: QueuedTrain) -> None:
    train.end_body(_crash_attempt(train, "12_1.0", "tr1-13b-ecc.txt"), 1)
    train.queue.breaks_after = 0
    assert ask_json(train, "gpt")["cause"] == "gpu-ecc"


def test_rank_log_supplies_lines_main_log_lost(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    (train.run.attempt_logs(attempt.name) / "node002-3.log").write_text(read_corpus("tr1-13b-ecc.txt"))
    train.end_body(attempt, 1)
    fields = ask_json(train, "gpt")
    assert (fields["cause"], fields["node"], fields["rank"]) == ("gpu-ecc", "node002", 3)


def test_running_attempt_has_no_cause(train: QueuedTrain) -> None:
    train.start_attempt()
    train.add_row((1,), JobState.RUNNING)
    with pytest.raises(InputError, match="gpt: no attempt has ended"):
        call(train, "gpt")
    with pytest.raises(InputError, match="gpt: no attempt of task 7 has ended"):
        call(train, "gpt", "--task", "7")


def check_node(train: QueuedTrain, node: str, evidence: str = "") -> None:
    """Store a health check of `node`, made now."""
    at = train.clock.now()
    rows = (CheckResult(check="remapped_rows", severity=CheckSeverity.DEGRADED, evidence=evidence),) if evidence else ()
    health = Health.DEGRADED if evidence else Health.HEALTHY
    verdict = Verdict(node=node, health=health, results=rows, at=at, by="ssh")
    FakeApp(train).history.save([(NodeSnapshot(node=node, at=at), verdict)], baseline_hours=24)


def test_earlier_findings_of_the_node_are_shown(train: QueuedTrain) -> None:
    check_node(train, "node002", "1 row pending")
    train.end_body(_crash_attempt(train, "12_1.0", "tr1-13b-ecc.txt", nodes="node[001-002]"), 1, after=3 * 3600)
    assert ask_json(train, "gpt")["also"] == [
        "node002 has had 1 finding (remapped_rows 1) in the 28 days before",
        "node002 was already degraded, at the check 3h before: remapped_rows: 1 row pending",
    ]
    assert "  also   node002 has had 1 finding" in call(train, "gpt").stdout


def test_crash_without_cause_shows_health_of_its_nodes(train: QueuedTrain) -> None:
    for node, evidence in (("node001", ""), ("node003", "1 row pending"), ("node004", "1 row pending")):
        check_node(train, node, evidence)
    attempt = train.start_attempt("12_1.0", nodes="node[001-003]")
    append_log(train, "nothing to see")
    train.end_body(attempt, 1, after=600)
    fields = ask_json(train, "gpt")
    assert (fields["cause"], fields["suspects"]) == ("nothing", [])
    assert fields["also"] == [
        "node003 was already degraded, at the check 10m before: remapped_rows: 1 row pending",
        "healthy at the last check before: node001",
        "no health check is stored of node002",
    ]


def test_unreadable_history_keeps_the_cause(train: QueuedTrain) -> None:
    check_node(train, "node002", "1 row pending")
    path = train.run.path.parent / ".site" / "nodes" / "node" / "node002.json"
    path.write_text(path.read_text().replace('"at":', '"at":"x","not":'))
    train.end_body(_crash_attempt(train, "12_1.0", "tr1-13b-ecc.txt", nodes="node[001-002]"), 1)
    fields = ask_json(train, "gpt")
    assert fields["cause"] == "gpu-ecc"
    assert "cannot be read" in fields["also"][0]  # type: ignore[index]  # a list
    path.write_text('{"node":"node002","incidents":[' + json.dumps(BROKEN) + "]}")
    fields = ask_json(train, "gpt")
    assert fields["cause"] == "gpu-ecc"
    assert "cannot be read" in fields["also"][0]  # type: ignore[index]  # a list


BROKEN = {"at": "x", "last": None, "count": 1, "node": "n", "check": "", "severity": "", "evidence": ""}


def test_log_without_a_train(train: QueuedTrain, log: Log) -> None:
    log.add_steps(1, 2).add(41, read_corpus("tr1-13b-ecc.txt"))
    assert call(train, "--log", str(log.write())).stdout.startswith(
        "gpu: uncorrectable memory error of a GPU\n  where  node r10i0n5"
    )


def test_directory_without_logs_is_refused(train: QueuedTrain, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no file there"):
        call(train, "--log", str(tmp_path / "empty"))


CORPUS = Path(__file__).parents[2] / "corpus" / "flight"
MISSING = "group 0 default_pg: rank 3 never came to gloo:all_reduce [[8]] (number 3)"
STACK = 'Thread 0x00007f (most recent call first):\n  File "/job/train.py", line 7 in <module>\n'


@pytest.fixture
def attempt(tmp_path):
    """The directory of an attempt: dumps of four ranks, and the stack of one."""
    shutil.copytree(CORPUS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "node7-3.txt").write_text(STACK)
    return tmp_path


def test_stacks_reads_dumps_by_file(attempt):
    names = [word for rank in range(3) for word in ("--from", str(attempt / f"flight-{rank}"))]
    assert CliRunner().invoke(stacks, names).output.splitlines()[-1] == "group 0 default_pg: no dump of rank 3"


def test_stacks_names_the_rank_and_its_node(attempt):
    lines = CliRunner().invoke(stacks, ["--from", str(attempt)], obj=None).output.splitlines()
    assert lines[-1] == MISSING.replace("rank 3", "rank 3 (node7)")
    assert "train.py:7" in lines[0]


def test_stacks_json_has_the_collective(attempt):
    fields = json.loads(CliRunner().invoke(stacks, ["--from", str(attempt), "--json"]).output)
    (problem,) = fields["collectives"]
    assert (fields["groups"][0]["place"], fields["flight_dumps"]) == ("<module> at train.py:7", 4)
    assert (problem["missing"], problem["number"], problem["calls"]) == ([3], 3, {"gloo:all_reduce [[8]]": [0, 1, 2]})


def test_stacks_reads_dumps_without_any_stack(attempt):
    (attempt / "node7-3.txt").unlink()
    assert CliRunner().invoke(stacks, ["--from", str(attempt)]).output.splitlines() == [MISSING]


def test_dumps_under_torch_names_are_read(tmp_path):
    for rank in range(4):
        shutil.copy(CORPUS / f"flight-{rank}", tmp_path / f"nccl_trace_rank_{rank}")
    assert describe_dumps(read_dumps(tmp_path)) == [MISSING]


def test_dumps_without_a_problem_say_so(tmp_path):
    shutil.copy(CORPUS / "flight-3", tmp_path / "flight-3")
    (line,) = describe_dumps(read_dumps(tmp_path))
    assert line == "flight recorder: no collective waits for a rank in the dumps of rank 3"


def test_logs_show_the_line_that_decides_at_its_place(train: QueuedTrain) -> None:
    attempt = train.start_attempt("12_1.0")
    append_log(train, *(f"iteration {number} | loss 2.1" for number in range(50)), "KeyError: 'a'", "the end")
    train.end_body(attempt, 1)
    shown = CliRunner(catch_exceptions=False).invoke(
        logs, ["gpt", "--at", str(ask_json(train, "gpt")["place"])], obj=FakeApp(train)
    )
    lines = shown.stdout.splitlines()
    assert (lines[0], lines[10:13]) == (
        "iteration 39 | loss 2.1",
        ["iteration 49 | loss 2.1", "KeyError: 'a'", "the end"],
    )
