"""Sandbox faults: their effect on processes and on Slurm's view."""

from pathlib import Path

import pytest

from opsctl.base.errors import InputError, SandboxError
from opsctl.host.processes import ProcessId
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from tests.support.slurms import Up, run_slurm, wait_until


def start_job(sandbox: Sandbox, tmp_path: Path, node: str) -> ProcessId:
    """Start a job on `node` and return its process."""
    path = tmp_path / "pid"
    script = f"echo $$ > {path}.new; mv {path}.new {path}; exec sleep 1000"
    run_slurm(sandbox, "sbatch", "--no-requeue", "-w", node, "--output=/dev/null", f"--wrap={script}")
    wait_until(path.exists)
    process = ProcessId.of(int(path.read_text()))
    assert process is not None
    return process


def test_killed_slurmd_leaves_its_job_running_and_comes_back(fresh_slurm: Up, tmp_path: Path) -> None:
    sandbox = fresh_slurm()
    job = start_job(sandbox, tmp_path, "node002")
    sandbox.fault("node002", FaultKind.KILL)
    assert sandbox.status().dead == ("node002",)
    assert job.is_alive
    sandbox.fault("node002", FaultKind.RESTART)
    assert sandbox.status().dead == ()
    assert run_slurm(sandbox, "squeue", "-h", "-o%t").strip() == "R"
    assert job.is_alive


def test_crash_ends_the_jobs_of_its_node_only(fresh_slurm: Up, tmp_path: Path) -> None:
    sandbox = fresh_slurm()
    lost = start_job(sandbox, tmp_path, "node002")
    (tmp_path / "pid").unlink()
    process = start_job(sandbox, tmp_path, "node001")
    sandbox.fault("node002", FaultKind.CRASH)
    assert not lost.is_alive
    assert process.is_alive
    assert sandbox.status().dead == ("node002",)


def test_stopped_slurmd_answers_after_resume(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    slurmd = sandbox.record.daemon("node001")
    assert slurmd is not None
    sandbox.fault("node001", FaultKind.STOP)
    wait_until(lambda: "(stopped)" in Path(f"/proc/{slurmd.process.pid}/status").read_text())
    assert sandbox.status().dead == ()
    sandbox.fault("node001", FaultKind.RESUME)
    assert run_slurm(sandbox, "srun", "hostname")


def test_status_shows_a_killed_controller(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm()
    sandbox.fault("controller", FaultKind.KILL)
    status = sandbox.status()
    assert (status.is_up, status.dead, dict(status.nodes)) == (False, ("slurmctld",), {})
    sandbox.fault("controller", FaultKind.RESTART)
    wait_until(lambda: sandbox.status().nodes == {"node001": "idle", "node002": "idle"})


def test_restarted_controller_keeps_its_queue(fresh_slurm: Up, tmp_path: Path) -> None:
    sandbox = fresh_slurm()
    start_job(sandbox, tmp_path, "node001")
    sandbox.fault("controller", FaultKind.RESTART)
    assert run_slurm(sandbox, "squeue", "-h", "-o%t").strip() == "R"


def test_dead_daemon_cannot_be_killed(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    sandbox.fault("node001", FaultKind.KILL)
    with pytest.raises(SandboxError, match="node001 does not run, so there is nothing to kill"):
        sandbox.fault("node001", FaultKind.KILL)


def test_unknown_target_is_refused_with_the_known_ones(slurm: Sandbox) -> None:
    for target in ("node099", "munged", "mariadbd", "../node001"):
        with pytest.raises(InputError, match="there is no") as caught:
            slurm.fault(target, FaultKind.KILL)
        assert caught.value.hint == "one of node001 to node004, or: controller"
