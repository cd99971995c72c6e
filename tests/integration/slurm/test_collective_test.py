"""`opsctl test-nodes` on a real Slurm: real ranks with torch and gloo, and faulty nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.support.gpu_nodes import GpuNodes, gpu_nodes
from tests.support.trains import Trains

pytest.importorskip("torch")
PYTHON = """#!/bin/sh
case "$SLURMD_NODENAME $2" in
{cases}
esac
exec {python} "$@"
"""


@pytest.fixture
def world(slurm: Sandbox) -> Iterator[tuple[Trains, GpuNodes]]:
    with gpu_nodes(slurm) as made:
        yield made


def write_python(place: Path, *cases: str) -> Path:
    """Write an interpreter that fails on some nodes, alone or as a rank."""
    path = place / "python"
    path.write_text(PYTHON.format(cases="\n".join(cases), python=sys.executable))
    path.chmod(0o755)
    return path


def run(trains: Trains, *words: object) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "opsctl", "--site", str(trains.site), "test-nodes", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_node_that_breaks_the_sum_is_drained(world: tuple[Trains, GpuNodes], tmp_path: Path) -> None:
    trains, _ = world
    broken = write_python(tmp_path, '*node002*rank*) echo "no route to host" >&2; exit 7 ;;')
    code, results = run(
        trains, "node[001-004]", "--python", broken, "--seconds", 12, "--megabytes", 1, "--pairs", 0, "--drain"
    )
    nodes = {node["node"]: node for node in results["nodes"]}
    assert code == 1
    health = {name: node["health"] for name, node in nodes.items()}
    assert [name for name, level in health.items() if level == "faulty"] == ["node002"]
    # On a busy machine, a test that takes longer than its 12 s leaves a node unknown.
    assert list(health.values()).count("healthy") >= 2, health
    evidence = "all-reduce fails with every other node: no route to host"
    assert nodes["node002"]["results"][0]["evidence"] == evidence
    node = next(node for node in trains.app.slurm.nodes() if node.name == "node002")
    assert "DRAIN" in node.state
    assert node.reason == f"opsctl: test-nodes: {evidence}"


def test_node_without_torch_is_unknown(world: tuple[Trains, GpuNodes], tmp_path: Path) -> None:
    trains, _ = world
    lacking = write_python(tmp_path, '*node003*) echo "No module named torch" >&2; exit 1 ;;')
    code, results = run(trains, "node[001-003]", "--python", lacking, "--megabytes", 1, "--pairs", 1)
    nodes = {node["node"]: node["health"] for node in results["nodes"]}
    assert (code, nodes) == (0, {"node001": "healthy", "node002": "healthy", "node003": "unknown"})
    assert [test_round["passed"] for test_round in results["rounds"]] == [[True], [True]]
    assert set(results["gigabytes_per_s"]) == {"node001", "node002"}
    assert {node["by"] for node in results["nodes"]} == {"srun"}, "one job held the nodes for all tests"
    assert all(job.state.is_final for job in trains.app.slurm.jobs()), "the job has ended"
