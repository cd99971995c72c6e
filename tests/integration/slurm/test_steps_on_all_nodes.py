"""A command on all nodes of a job: one step, exact answers, and the answers of the others if a node fails."""

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.health.node_checker import NodeChecker
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.settings.health import HealthSettings
from opsctl.slurm.steps import InJob, ShortJob
from opsctl.state.site_dir import SiteDir
from tests.support.slurms import run_slurm
from tests.support.trains import until

NODES = [f"node{number:03}" for number in range(1, 7)]
OTHERS = {*NODES} - {"node004"}


def list_started(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the commands that started steps and jobs."""
    words = [word for message in caplog.messages for word in message.split()[:4]]
    return [word for word in words if word in {"srun", "salloc"}]


@pytest.fixture
def sandbox(fresh_slurm: Callable[..., Sandbox]) -> Sandbox:
    return fresh_slurm(nodes=len(NODES))


@pytest.fixture
def shell(sandbox: Sandbox) -> InJob:
    """The way into a running job on all nodes."""
    words = ("sbatch", "--parsable", f"--nodes={len(NODES)}", "--no-kill", "--output=/dev/null", "--wrap=sleep 3000")
    job = run_slurm(sandbox, *words).strip()
    until(lambda: run_slurm(sandbox, "squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
    return InJob(runner=SystemRunner(env=sandbox.env()), jobs=dict.fromkeys(NODES, job))


def test_answers_of_one_step_are_exact_and_of_each_node(shell: InJob, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    end = "printf 'end of %s' $SLURMD_NODENAME; echo oops >&2; exit ${SLURMD_NODENAME#node00}"
    script = f"cat; echo {'x' * 5000}; {end}"
    answers = Fanout(shells=[shell]).run(NODES, ("sh", "-c", script), timeout=250, stdin="asked\n")
    assert [(answer.node, answer.code, answer.err, answer.by, answer.out) for answer in answers.values()] == [
        (node, number, "oops\n", "srun", f"asked\n{'x' * 5000}\nend of {node}") for number, node in enumerate(NODES, 1)
    ]
    assert list_started(caplog) == ["srun", "srun"], "a look for silent nodes, and the step"


@pytest.mark.parametrize(
    ("fault", "code"), [("exec kill -9 $$", 137), ("sleep 1000", None), ("kill -9 $PPID; sleep 1000", None)]
)
def test_node_where_the_command_fails_is_unknown_alone(shell: InJob, fault: str, code: int | None) -> None:
    script = f"case $SLURMD_NODENAME in node004) {fault};; esac; echo well"
    answers = shell.run_all(NODES, ("sh", "-c", script), timeout=15)
    assert {node for node, answer in answers.items() if (answer.code, answer.out) == (0, "well\n")} == OTHERS
    assert (answers["node004"].code, answers["node004"].may_have_run) == (code, True), answers["node004"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [FaultKind.KILL, FaultKind.STOP])
def test_lost_node_ends_the_command_on_no_other_node(sandbox: Sandbox, shell: InJob, kind: FaultKind) -> None:
    sandbox.fault("node004", kind)
    answers = shell.run_all(NODES, ("sh", "-c", "sleep 12; echo well"), timeout=250)
    assert {node for node, answer in answers.items() if answer.out == "well\n"} == OTHERS
    assert (answers["node004"].code, answers["node004"].may_have_run) == (None, False), "another route may be tried"


def test_node_check_keeps_what_it_found(sandbox: Sandbox, shell: InJob, tmp_path: Path) -> None:
    """The check has no time for a look for silent nodes."""
    sandbox.fault("node004", FaultKind.STOP)
    checker = NodeChecker(
        fanout=Fanout(shells=[shell]),
        history=NodeHistory(site=SiteDir(tmp_path / ".site"), clock=SystemClock()),
        site=HealthSettings(section_seconds=5),
        clock=SystemClock(),
        busy={},
        answer_s=19,
    )
    checked = checker.check(NODES)
    assert {node for node, snapshot in checked.snapshots.items() if snapshot.sections} == OTHERS
    assert checked.snapshots["node004"].problem == "srun: no answer within 19 s"


def test_idle_nodes_share_one_job(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    shell = ShortJob(runner=SystemRunner(env=sandbox.env()), idle=NODES, wait_s=30)
    answers = shell.run_all(NODES, ("printenv", "SLURMD_NODENAME"), timeout=250)
    assert [(answer.code, answer.out.strip(), answer.by) for answer in answers.values()] == [
        (0, node, "job") for node in NODES
    ]
    assert list_started(caplog) == ["salloc", "srun", "srun"]
    until(lambda: not run_slurm(sandbox, "squeue", "-h"))
