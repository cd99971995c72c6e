"""A job loses a node while the other nodes, with the batch step, go on: the same on every Slurm version."""

import json
from collections.abc import Callable, Iterator

import pytest

from opsctl.base.nodesets import expand
from opsctl.host.processes import ProcessCandidate, ProcessId, find_processes
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, trains_on, until

Scene = tuple[Trains, Sandbox]


@pytest.fixture
def scene(fresh_slurm: Callable[..., Sandbox]) -> Iterator[Scene]:
    sandbox = fresh_slurm(nodes=4)
    with trains_on(sandbox) as trains:
        yield trains, sandbox


def lose_a_node(scene: Scene) -> tuple[dict[str, object], str]:
    """Crash a node of a train over two nodes; return the end.json of its first attempt and the lost node."""
    trains, sandbox = scene
    command = ("sh", "-c", f"echo go >>{trains.place}/began; exec sleep 300")
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=2, extra=()))
    began = trains.place / "began"
    until(lambda: began.exists() and len(began.read_text().split()) == 2)
    nodes = next(row.nodes for row in trains.rows() if row.nodes)
    lost = expand(nodes)[1]
    sandbox.fault(lost, FaultKind.CRASH)
    # Slurm would notice the dead node after SlurmdTimeout.
    trains.app.runner.run(("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=dead"), timeout=250)
    ends = until(lambda: list(trains.run().path.glob("attempts/*_1.0/end.json")))
    return json.loads(ends[0].read_text()), lost


def test_attempt_that_lost_a_node_is_not_cancelled(scene: Scene) -> None:
    end, lost = lose_a_node(scene)
    assert (end["outcome"], end["kind"], end["suspects"]) == ("node-failed", "node", [lost]), end


def test_next_attempt_reports_a_crashed_node(scene: Scene) -> None:
    trains, sandbox = scene
    steps = 'for n in 1 2 3; do echo " iteration $n/ 100 | lm loss: 2.5 |"; done'
    command = ("sh", "-c", f"{steps}; echo go >>{trains.place}/began; exec sleep 300")
    trains.opsctl("launch", trains.toml(command=command, nodes=1, tasks=2, extra=()))
    until((trains.place / "began").exists)
    lost = next(row.nodes for row in trains.rows() if row.nodes)
    sandbox.fault(lost, FaultKind.CRASH)
    trains.app.runner.run(("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=dead"), timeout=250)
    alerts = trains.app.site_dir.alerts / "alerts.log"
    text = until(lambda: alerts.exists() and alerts.read_text())
    assert lost in text
    assert not list(trains.run().path.glob("attempts/*_2.0/end.json"))


@pytest.mark.long
def test_ranks_of_a_node_without_power_are_not_waited_for(scene: Scene) -> None:
    trains, sandbox = scene
    fails = f"[ $SLURM_PROCID = 1 ] || {{ until [ -e {trains.place}/lost ]; do sleep 0.1; done; exit 1; }}; sleep 300"
    command = ("sh", "-c", f"echo go >>{trains.place}/began; {fails}")
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=2, extra=()))
    began = trains.place / "began"
    until(lambda: began.exists() and len(began.read_text().split()) == 2)
    nodes = next(row.nodes for row in trains.rows() if row.nodes)
    sandbox.fault(expand(nodes)[1], FaultKind.CRASH)
    (trains.place / "lost").touch()
    ends = until(lambda: list(trains.run().path.glob("attempts/*_1.0/end.json")))
    assert json.loads(ends[0].read_text())["outcome"] in {"crashed", "node-failed"}
    assert "did not answer" in trains.run().main_log.read_text()


def test_down_leaves_no_slurmstepd(fresh_slurm: Callable[..., Sandbox]) -> None:
    sandbox = fresh_slurm(nodes=2)
    home = str(sandbox.record.site.home)
    run_slurm(sandbox, "sbatch", "--nodes=2", "--output=/dev/null", "--wrap=srun sleep 300")

    def is_step(process: ProcessCandidate) -> bool:
        return process.name == "slurmstepd" and any(home in path for path in process.open_files())

    def find_all_steps() -> list[ProcessId]:
        steps = find_processes(is_step)
        return steps if len(steps) >= 6 else []

    steps = until(find_all_steps)
    sandbox.down(grace=0.2)
    assert [process for process in steps if process.is_alive] == []
