"""Nodes that several trains share, and dry runs of node tests."""

import json
import time

import pytest

from opsctl.base.errors import InputError
from opsctl.cli.nodes import shorten
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.slow_nodes import StepTimeRatio
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.steps import InJob
from opsctl.state.site_dir import SiteDir
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, until


def test_all_trains_of_a_shared_node_are_named(slurm: Sandbox, trains: Trains) -> None:
    for name, nodes in (("gpt-b", "node001"), ("gpt-a", "node[001-002]")):
        run_slurm(
            slurm,
            "sbatch",
            f"--job-name={name}",
            f"--comment=opsctl:{name}:n",
            f"--nodelist={nodes}",
            "--mem=10",
            f"--nodes={2 - (nodes == 'node001')}",
            "--ntasks-per-node=1",
            "--output=/dev/null",
            "--wrap=sleep 100",
        )
        trains.run(name).create()
        trains.run(name).config.write_text("")
    until(lambda: all(row.state.is_active for row in trains.rows("gpt-a") + trains.rows("gpt-b")))
    rows = {row["node"]: row["trains"] for row in json.loads(trains.opsctl("nodes", "--json"))}
    assert rows == {"node001": ["gpt-a", "gpt-b"], "node002": ["gpt-a"], "node003": [], "node004": []}
    assert trains.opsctl("nodes", "node001").splitlines()[1].split()[2:4] == ["gpt-a,", "gpt-b"]
    for name, nodes in (("gpt-a", ["node001", "node002"]), ("gpt-b", ["node001"])):
        text = trains.opsctl("test-nodes", "--train", name, "--dry-run", "--json")
        assert json.loads(text) == {"would_test": nodes}


def test_slow_node_is_shown_and_not_called_bad(trains: Trains) -> None:
    assert "step time" not in trains.opsctl("nodes")
    history = NodeHistory(site=SiteDir(trains.root / ".site"), clock=SystemClock())
    for number in range(3):
        ratio = StepTimeRatio(at=time.time(), ratio=1.25, local_rank=2, nodes=4, partners=str(number))
        history.note_step_times(f"gpt/12_{number}.0", {"node002": ratio})
    rows = {row["node"]: row["step_time"] for row in json.loads(trains.opsctl("nodes", "--json"))}
    speed = {"ratio": 1.25, "attempts": 3, "partner_sets": 3, "is_slow": True, "local_rank": 2}
    assert rows == {"node001": None, "node002": speed, "node003": None, "node004": None}
    assert "1.25x slow (local rank 2)" in trains.opsctl("nodes")
    assert "node002" not in trains.opsctl("nodes", "--bad")


def test_only_the_first_trains_of_a_node_are_named() -> None:
    assert shorten(["a", "b", "c"]) == "a, b, c"
    assert shorten(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_dry_run_of_test_nodes_contacts_no_node(trains: Trains) -> None:
    assert json.loads(trains.opsctl("test-nodes", "node[003-004]", "--dry-run", "--json")) == {
        "would_test": ["node003", "node004"]
    }
    text = trains.opsctl("test-nodes", "node[003-004]", "--dry-run")
    assert text == "would test node[003-004], each alone, then all together; a dry run: nothing was done\n"
    assert not (trains.root / ".site").exists()
    with pytest.raises(InputError, match="no such nodes: node009"):
        trains.opsctl("test-nodes", "node009", "--dry-run", "--json")


def test_node_of_a_job_with_all_memory_in_use_is_reached(slurm: Sandbox, trains: Trains) -> None:
    ranks = f"srun sh -c 'touch {trains.place}/up; sleep 3000'"
    words = ("sbatch", "--parsable", "--nodelist=node001", "--ntasks=1", "--output=/dev/null")
    job = run_slurm(slurm, *words, f"--wrap=env -0 >{trains.place}/env; {ranks}").strip()
    until((trains.place / "up").exists)
    variables = (trains.place / "env").read_text().rstrip("\0").split("\0")
    guard = SystemRunner(env=dict(variable.split("=", 1) for variable in variables))
    shell = InJob(runner=guard, jobs={"node001": job})
    assert shell.run_all(["node001"], ("echo", "here"), timeout=250)["node001"].out == "here\n"
    trains.app.slurm.cancel(job)  # other tests want all nodes of this Slurm
    until(lambda: [row for row in trains.app.slurm.jobs() if row.id == job and row.state.is_final])
