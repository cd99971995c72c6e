"""`opsctl test-nodes` on a real Slurm: real ranks with torch and gloo, and ranks that fail."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.launch.render import templates_dir
from opsctl.nodes.remote.fanout import merge_objects
from opsctl.sandbox.cluster import Sandbox
from tests.support.gpu_nodes import GpuNodes, gpu_nodes
from tests.support.ports import HeldPort
from tests.support.trains import Trains

pytest.importorskip("torch")
LACKS_TORCH = """#!/bin/sh
[ "$SLURMD_NODENAME" != node003 ] || {{ echo "No module named torch" >&2; exit 1; }}
exec {python} "$@"
"""
"""An interpreter that has torch on all nodes but one."""


@pytest.fixture
def world(slurm: Sandbox) -> Iterator[tuple[Trains, GpuNodes]]:
    with gpu_nodes(slurm) as made:
        yield made


def write_python(place: Path, text: str) -> Path:
    path = place / "python"
    path.write_text(text.format(python=sys.executable))
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


MEETING_RANK = """#!{python}
import json, os, socket, sys, time

def connect(address):
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.02)

def meet(rank, world, address):
    node = os.environ["SLURMD_NODENAME"]
    if rank:
        with connect(address) as master:
            master.sendall(node.encode())
            return master.recv(999).decode()
    with socket.create_server(address) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    names = " ".join([node, *(peer.recv(99).decode() for peer in peers)])
    for peer in peers:
        peer.sendall(names.encode())
    return names

request = json.loads(sys.argv[2])
print('{{"begun": true, "devices": 0}}')
if "rank" in request and "node002" in meet(request["rank"], request["world"], (request["master"], request["port"])):
    sys.exit("no route to host")
"""
"""A rank without torch: it meets the other ranks of its group, and then fails if node002 is one of them.

Ranks of torch would find this out only by the timeout of every test, of which the search needs seven.
"""


def test_node_that_breaks_the_sum_is_drained(world: tuple[Trains, GpuNodes], tmp_path: Path) -> None:
    trains, _ = world
    python = write_python(tmp_path, MEETING_RANK)
    code, results = run(trains, "node[001-004]", "--python", python, "--pairs", 0, "--drain")
    health = {node["node"]: node["health"] for node in results["nodes"]}
    assert (code, health) == (1, dict.fromkeys(health, "healthy") | {"node002": "faulty"})
    evidence = "all-reduce fails with every other node: no route to host"
    [faulty] = [node for node in results["nodes"] if node["node"] == "node002"]
    assert faulty["results"][0]["evidence"] == evidence
    node = next(node for node in trains.app.slurm.nodes() if node.name == "node002")
    assert "DRAIN" in node.state
    assert node.reason == f"opsctl: test-nodes: {evidence}"


def test_node_without_torch_is_unknown(world: tuple[Trains, GpuNodes], tmp_path: Path) -> None:
    trains, _ = world
    python = write_python(tmp_path, LACKS_TORCH)
    code, results = run(trains, "node[001-003]", "--python", python, "--megabytes", 1, "--pairs", 1)
    nodes = {node["node"]: node["health"] for node in results["nodes"]}
    assert (code, nodes) == (0, {"node001": "healthy", "node002": "healthy", "node003": "unknown"})
    assert [test_round["passed"] for test_round in results["rounds"]] == [[True], [True]]
    assert set(results["gigabytes_per_s"]) == {"node001", "node002"}
    assert {node["by"] for node in results["nodes"]} == {"srun"}, "one job held the nodes for all tests"
    assert all(job.state.is_final for job in trains.app.slurm.jobs()), "the job has ended"


def test_rank_whose_partner_is_missing_fails_at_its_timeout() -> None:
    program = (templates_dir() / "nodes" / "all_reduce.py").read_text()
    with HeldPort() as held:
        request = {"timeout_s": 1, "size_mib": 1, "devices": 0, "world": 2, "rank": 0, "master": "127.0.0.1"}
        argv = [sys.executable, "-", json.dumps(request | {"port": held.number})]
        done = subprocess.run(argv, input=program, capture_output=True, text=True, timeout=400, check=False)
    answer = merge_objects(done.stdout)
    assert (done.returncode, answer["begun"]) == (1, True), done.stderr
    assert "waiting for clients" in answer["error"]
