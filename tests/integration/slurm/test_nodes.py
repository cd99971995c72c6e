"""The commands for nodes on a real slurmctld, with GPU output from the corpus."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.errors import InputError
from opsctl.base.model import JobState
from opsctl.cron.cron_dir import IN_CRON
from opsctl.launch.train_arrays import excluded_until
from opsctl.nodes.drain import Quarantine
from opsctl.nodes.drain_plan import NodePlan, Step
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import Excluded
from opsctl.state.journal import Journal, actor
from tests.support.gpu_nodes import NODES, ORPHAN_UID, GpuNodes, gpu_nodes
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, as_user, await_idle, read_node, trains_on, until


@pytest.fixture
def world(slurm: Sandbox) -> Iterator[tuple[Trains, GpuNodes]]:
    """A site whose nodes are reached by srun alone."""
    with gpu_nodes(slurm) as made:
        yield made


@pytest.fixture
def ssh_world(slurm: Sandbox) -> Iterator[tuple[Trains, GpuNodes]]:
    """A site whose nodes are also reached by ssh, the only way to drained nodes."""
    with gpu_nodes(slurm, ssh=True) as made:
        yield made


def check_health(trains: Trains, *words: str) -> dict[str, dict[str, Any]]:
    return {verdict["node"]: verdict for verdict in json.loads(trains.opsctl("health", *words, "--json"))}


def test_bad_gpu_is_found_on_idle_nodes_by_a_short_job(world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = world
    await_idle(trains)
    nodes.change_gpu("node002", failure="Yes")
    nodes.set_output("node003", "smi", "NVIDIA-SMI has failed because it couldn't communicate with the driver.", code=9)
    text = trains.opsctl("health", "node[001-004]")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith("node002 faulty remapped_rows: GPU-node002-1: a row could not be remapped")
    assert lines[1].startswith("node003 unknown gpus: nvidia-smi exit code 9: NVIDIA-SMI has failed because")
    assert lines[-3:] == ["2 healthy: node[001,004]", "1 unknown: node003", "1 faulty: node002"]
    await_idle(trains)
    verdicts = check_health(trains, "node[001-004]")
    assert {verdict["by"] for verdict in verdicts.values()} == {"job"}
    assert [card["serial"] for card in verdicts["node002"]["cards"]] == ["165052200000node002", "165052200001node002"]


@pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here: apt-get install fio")
def test_file_system_is_measured_from_the_named_nodes(world: tuple[Trains, GpuNodes]) -> None:
    trains, _ = world
    trains.site.write_text(trains.site.read_text() + "fio_mib = 4\n")
    scratch = trains.place / "scratch"
    scratch.mkdir()
    text = trains.opsctl("health", "node[001-002]", "--fio", scratch)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for number in (0, 1):
        assert re.match(rf"node00{number + 1} healthy fio: write \d+ MiB/s, read \d+ MiB/s, ", lines[number])
    assert list(scratch.iterdir()) == []


def test_nodes_of_a_train_are_checked_inside_its_job(world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = world
    trains.opsctl("launch", trains.toml(command=("sleep", "600"), nodes=2, gpus_per_node=2, extra=(), tasks=1))
    job = until(lambda: next((job for job in trains.rows() if job.state is JobState.RUNNING), None))
    nodes.set_kernel_log(job.nodes.replace("node[001-002]", "node001").split(",")[0], "xid-79-154")
    verdicts = check_health(trains)
    assert len(verdicts) == 2
    assert {verdict["by"] for verdict in verdicts.values()} == {"srun"}
    assert sorted(verdict["health"] for verdict in verdicts.values()) == ["faulty", "healthy"]
    assert set(check_health(trains, "--train", "t")) == set(verdicts)
    assert trains.rows()[0].state is JobState.RUNNING


def test_bad_node_is_drained_with_the_evidence(
    world: tuple[Trains, GpuNodes],
) -> None:
    trains, nodes = world
    nodes.set_kernel_log("node002", "xid-79-154")
    plan = "drain node002: opsctl: xid: Xid 79 (the GPU has fallen off the bus) on 0000:01:00: NVRM: Xid"
    text = trains.opsctl("drain-bad-nodes", "--all", "--dry-run")
    assert plan in text
    assert text.endswith("a dry run: nothing was done\n")
    assert read_node(trains, "node002").state == "IDLE"
    text = trains.opsctl("drain-bad-nodes", "--all")
    assert "\nnode002: drained: opsctl: xid: Xid 79" in text
    node = read_node(trains, "node002")
    assert node.state == "IDLE+DRAIN"
    assert node.reason.startswith("opsctl: xid: Xid 79 (the GPU has fallen off the bus) on 0000:01:00")
    rows = {row["node"]: row for row in json.loads(trains.opsctl("nodes", "--json"))}
    drained = rows["node002"]
    assert (drained["is_ours"], drained["health"], drained["flakiness"]) == (True, "faulty", "5")
    assert drained["by"] == actor()
    assert drained["since"]
    assert [name for name, row in rows.items() if row["is_out"]] == ["node002"]
    assert trains.opsctl("nodes", "--bad").splitlines()[1].split()[:2] == ["node002", "IDLE+DRAIN"]


def test_cron_proposes_a_drain_that_the_policy_leaves_to_a_person(
    world: tuple[Trains, GpuNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    trains, nodes = world
    trains.site.write_text(trains.site.read_text() + '\n[policy]\ndrain = "propose"\n')
    nodes.set_kernel_log("node002", "xid-79-154")
    monkeypatch.setenv(IN_CRON, "1")
    text = trains.opsctl("drain-bad-nodes", "--all")
    assert "proposed to drain; to do it: opsctl drain-bad-nodes node002\n" in text
    assert read_node(trains, "node002").state == "IDLE"
    monkeypatch.delenv(IN_CRON)
    assert "\nnode002: drained: opsctl: xid" in trains.opsctl("drain-bad-nodes", "node002")


def test_drain_respects_the_cap_and_nodes_drained_by_others(world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = world
    for name in NODES:
        nodes.change_gpu(name, failure="Yes")
    drain_by_hand(trains, "node004", "bad fan")
    done = json.loads(trains.opsctl("drain-bad-nodes", "--all", "--max", "1", "--json"))
    assert [(result["node"], result["action"]) for result in done["done"]] == [("node001", "drained")]
    reasons = {node["node"]: node["why"] for node in done["plan"]["left"]}
    assert reasons["node002"] == "beyond the cap of 1 nodes that opsctl takes out at once"
    assert read_node(trains, "node004").reason == "bad fan"
    done = json.loads(trains.opsctl("drain-bad-nodes", "--all", "--json"))
    assert len(done["done"]) == 1  # half of four nodes, the drained one included


def drain_by_hand(trains: Trains, name: str, reason: str) -> None:
    argv = ("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
    subprocess.run(argv, check=True, timeout=250)
    until(lambda: read_node(trains, name).reason == reason)


def test_node_that_changed_after_the_plan_is_left(world: tuple[Trains, GpuNodes]) -> None:
    trains, _ = world
    app = trains.app
    steps = tuple(
        Step(node=name, reason="opsctl: x: y", snapshot=read_node(trains, name)) for name in ("node001", "node002")
    )
    drain_by_hand(trains, "node001", "bad fan")
    acts = Quarantine(
        slurm=app.slurm, history=app.history, exclusions=app.exclusions, site=app.site.health, all_arrays=()
    )
    done = acts.drain(NodePlan(steps=steps, cap=2))
    assert [(result.node, result.action) for result in done] == [
        ("node001", "left"),
        ("node002", "drained"),
    ]
    assert done[0].why == "has changed since: IDLE+DRAIN, bad fan"
    assert read_node(trains, "node001").reason == "bad fan"
    back = NodePlan(steps=(Step(node="node002", reason="opsctl: x: y", snapshot=read_node(trains, "node002")),))
    drain_by_hand(trains, "node002", "bad fan too")
    assert [result.action for result in acts.undrain(back)] == ["left"]
    assert read_node(trains, "node002").reason == "bad fan too"


def test_cap_counts_nodes_drained_after_the_plan(world: tuple[Trains, GpuNodes]) -> None:
    trains, _ = world
    app = trains.app
    plan = NodePlan(steps=(Step(node="node001", reason="opsctl: x: y", snapshot=read_node(trains, "node001")),), cap=1)
    app.slurm.drain("node004", "opsctl: a: b")
    acts = Quarantine(
        slurm=app.slurm, history=app.history, exclusions=app.exclusions, site=app.site.health, all_arrays=()
    )
    assert acts.drain(plan)[0].why == "opsctl has 1 node out of service already; the cap is 1"
    assert read_node(trains, "node001").state == "IDLE"


def test_hanging_check_is_unknown_and_drains_nothing(world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = world
    trains.site.write_text(trains.site.read_text().replace("section_seconds = 30", "section_seconds = 1"))
    nodes.set_output("node001", "smi", "", first="trap '' TERM; sleep 3000 & wait; sleep 3000")
    nodes.set_output("node002", "smi", "", first='echo "<nvidia_smi_log><gpu>"; kill -9 $$')
    done = json.loads(trains.opsctl("drain-bad-nodes", "node[001-002]", "--json"))
    assert (done["plan"]["steps"], done["done"]) == ([], [])
    health = {record.node: record.health for record in trains.app.history.all()}
    assert health == {"node001": "unknown", "node002": "unknown"}


def test_down_node_is_unknown_and_left_alone(world: tuple[Trains, GpuNodes], slurm: Sandbox) -> None:
    trains, _ = world
    slurm.fault("node004", FaultKind.KILL)
    try:
        argv = ("scontrol", "update", "NodeName=node004", "State=DOWN", "Reason=dead")
        subprocess.run(argv, check=True, timeout=250)
        fields = check_health(trains, "node004")["node004"]
        assert (fields["health"], fields["results"][0]["evidence"]) == ("unknown", "no route leads to the node")
        assert trains.opsctl("drain-bad-nodes", "node004").endswith("nothing to drain\n")
    finally:
        slurm.fault("node004", FaultKind.RESTART)


def test_drained_node_is_undrained_after_two_good_checks(ssh_world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = ssh_world
    nodes.change_gpu("node003", failure="Yes")
    trains.opsctl("drain-bad-nodes", "node003")
    drain_by_hand(trains, "node004", "bad fan")
    assert trains.opsctl("undrain-good-nodes").splitlines()[0].startswith("leave node003: is faulty: remapped_rows")
    nodes.change_gpu("node003")
    text = trains.opsctl("undrain-good-nodes")
    assert text == "leave node003: has passed one health check; check again after 0s\nnothing to undrain\n"
    assert check_health(trains, "node003")["node003"]["by"] == "ssh"
    written = read_node(trains, "node003").reason
    trains.app.slurm.drain("node003", f"{written}; ticket 4711")
    text = trains.opsctl("undrain-good-nodes")
    assert text == f"leave node003: its reason was amended: {written}; ticket 4711\nnothing to undrain\n"
    trains.app.slurm.drain("node003", written)
    trains.opsctl("undrain-good-nodes", "--dry-run")
    assert trains.opsctl("undrain-good-nodes", "--dry-run").endswith("a dry run: nothing was done\n")
    text = trains.opsctl("undrain-good-nodes")
    assert text.startswith("undrain node003: opsctl: remapped_rows: GPU-node003-1 a row could not be remapped\n")
    assert text.endswith("node003: undrained\n")
    assert "DRAIN" not in read_node(trains, "node003").state
    assert read_node(trains, "node004").reason == "bad fan"


@pytest.mark.root
def test_orphans_are_ended_only_with_kill_orphans(ssh_world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = ssh_world
    until(lambda: not trains.app.slurm.reasons())
    orphan = subprocess.Popen(("sleep", "300"), user=ORPHAN_UID)
    other = subprocess.Popen(("sleep", "300"), user=0)
    held = "".join(f"<process_info><pid>{popen.pid}</pid><type>C</type></process_info>" for popen in (orphan, other))
    try:
        nodes.change_gpu("node002", processes=held)
        drain_by_hand(trains, "node002", "Kill task failed")
        text = trains.opsctl("undrain-good-nodes", "node002")
        assert text.startswith(f"leave node002: is degraded: orphans: held by {orphan.pid} (sleep, uid {ORPHAN_UID})")
        assert orphan.poll() is None
        text = trains.opsctl("undrain-good-nodes", "node002", "--kill-orphans")
        assert f"node002: ended {orphan.pid}\n" in text
        assert orphan.wait(250) == -9
        assert other.poll() is None
        assert text.endswith("node002: undrained\n"), text
    finally:
        for popen in (orphan, other):
            popen.kill()
            popen.wait()


def test_without_drain_nodes_are_excluded_and_reported(
    slurm: Sandbox,
) -> None:
    with gpu_nodes(slurm, more='drain = "never"') as (trains, nodes):
        trains.opsctl("launch", trains.toml(nodes=2))
        trains.opsctl("launch", trains.toml("large", nodes=4))
        (array,), (large,) = trains.arrays(), trains.arrays("large")
        nodes.set_kernel_log("node002", "xid-79-154")
        text = trains.opsctl("drain-bad-nodes", "--all")
        assert "note: after this drain large's 4 nodes no longer fit: 3 left\n" in text
        assert "from t's queued tasks" in text
        assert f"not from large: with node002 excluded 3 nodes are left, and array {large} needs 4" in text
        assert trains.app.slurm.excluded(array) == "node002"
        assert read_node(trains, "node002").state == "IDLE"
        assert trains.kinds()[-1] is Excluded
        report = (trains.root / ".site" / "nodes" / "report.txt").read_text()
        assert "node002 (IDLE" in report
        assert "Xid 79" in report
        text = trains.opsctl("launch", trains.toml("later"))
        assert text.startswith("later: excludes node002, which opsctl judged bad; see opsctl nodes\n")
        (later,) = trains.arrays("later")
        assert trains.app.slurm.excluded(later) == "node002"
        assert list(excluded_until(Journal(trains.run("later"), trains.app.clock).events())) == ["node002"]
        assert "excluded from our trains: opsctl: xid" in trains.opsctl("nodes", "--bad")


@pytest.mark.root
def test_user_without_drain_rights_excludes_instead(slurm: Sandbox, tmp_path: Path) -> None:
    with gpu_nodes(slurm) as (trains, nodes):
        os.chown(trains.place, 65534, 65534)
        nodes.set_kernel_log("node003", "xid-79-154")
        text = as_user(65534, 65534, lambda: _launch_and_drain(trains))
        trains.site = Path(shutil.copy(trains.site, tmp_path))  # root trusts no settings in another user's directory
        assert "node003: excluded: from later launches; from t's queued tasks" in text
        assert "for the administrators" in text
        assert read_node(trains, "node003").state == "IDLE"


def _launch_and_drain(trains: Trains) -> str:
    trains.opsctl("launch", trains.toml(nodes=2))
    return trains.opsctl("drain-bad-nodes", "--all")


def test_exec_groups_answers_and_sums_exit_codes(world: tuple[Trains, GpuNodes]) -> None:
    trains, _ = world
    await_idle(trains)
    text = trains.opsctl(
        "exec", "-w", "node[001-003]", "--", "case $SLURMD_NODENAME in *2) echo odd; exit 3;; esac; echo hi"
    )
    assert text == (
        "--- node002 (1): exit 3\nodd\n--- node[001,003] (2)\nhi\nexit 0: 2 node[001,003]\nexit 3: 1 node002\n"
    )
    await_idle(trains)
    assert trains.opsctl("exec", "-w", "node001", "--", "printf", "%s", "a b; $c").splitlines()[1] == "a b; $c"
    with pytest.raises(InputError, match="no such nodes: node9"):
        trains.opsctl("exec", "-w", "node9", "--", "true")


def test_health_needs_nodes_or_a_running_train(slurm: Sandbox) -> None:
    with trains_on(slurm) as trains:
        error = trains.refusal("health")
        assert error.message == "no train is running, so there is no default selection of nodes"
        assert str(error.hint).startswith("select nodes: NODES, --partition, --train, --all, such as ")
        assert trains.refusal("health", "--partition", "nope").message == "partition nope has no nodes"
        assert trains.refusal("health", "node[").message.startswith("'node[' is not a node list")


def test_unknown_check_is_reported(world: tuple[Trains, GpuNodes]) -> None:
    trains, _ = world
    trains.site.write_text(trains.site.read_text() + 'may_be_unknown = ["remaped_rows"]\n')
    problem = trains.refusal("health", "node001").message.splitlines()[1]
    assert problem.startswith("  [health] may_be_unknown: no such check: remaped_rows; there are: gpus, recovery, xid,")


def test_exit_code_says_whether_a_node_is_bad(world: tuple[Trains, GpuNodes]) -> None:
    trains, nodes = world
    nodes.change_gpu("node002", failure="Yes")
    argv = (sys.executable, "-m", "opsctl", "--site", str(trains.site), "health")
    codes = [
        subprocess.run((*argv, nodes_argument), check=False, timeout=250, stdout=subprocess.DEVNULL).returncode
        for nodes_argument in ("node001", "node[001-002]")
    ]
    assert codes == [0, 1]


def test_fact_gathering_leaves_nothing_behind(world: tuple[Trains, GpuNodes], slurm: Sandbox) -> None:
    trains, _ = world
    before = set(Path("/tmp").glob("opsctl-health.*"))
    check_health(trains, "node[001-004]")
    until(lambda: set(Path("/tmp").glob("opsctl-health.*")) <= before)
    until(lambda: not [line for line in run_slurm(slurm, "squeue", "-h", "-n", "opsctl-node").splitlines() if line])
