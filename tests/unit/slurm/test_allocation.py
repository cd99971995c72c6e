"""The environment of a start that uses a part of its job's nodes."""

import pytest

from opsctl.slurm.job_environment import ALLOCATED, CHOSEN, limit_to_nodes, list_allocated, list_hosts, list_used
from opsctl.slurm.steps import REMOVED_ENV

JOB = {
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "12",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2),16",
    "HOME": "/root",
}


def test_variables_of_slurm_tell_of_the_chosen_nodes_alone() -> None:
    env = limit_to_nodes(JOB, ["n1", "n3"], allocated=["n1", "n3"])
    expected = {"SLURM_JOB_NODELIST": "n1,n3", "SLURM_NNODES": "2", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8"}
    assert {key: env[key] for key in expected} == expected
    assert (env["SLURM_TASKS_PER_NODE"], env["SLURM_JOB_CPUS_PER_NODE"], env["HOME"]) == ("4(x2)", "8,16", "/root")


def test_steps_of_the_guard_are_not_limited_to_the_chosen_nodes() -> None:
    env = limit_to_nodes(JOB, ["n1", "n3"], allocated=["n1", "n3"])
    changed = {name for name in env if env[name] != JOB.get(name)} - {ALLOCATED, CHOSEN}
    assert changed <= REMOVED_ENV.keys()


def test_left_out_node_stays_out() -> None:
    first = limit_to_nodes(JOB, ["n1", "n2"], allocated=["n1", "n2", "n3"])
    assert list_allocated(first) == ["n1", "n2", "n3"]
    second = limit_to_nodes(first, ["n1", "n3"], allocated=["n1", "n3"])
    assert list_allocated(second) == ["n1", "n3"]


def test_spare_in_the_place_of_a_lost_node_keeps_the_order_of_the_ranks() -> None:
    first = limit_to_nodes(JOB, ["n1", "n2"], allocated=["n1", "n2", "n3"])
    assert (list_used(first), list_hosts(first)) == (["n1", "n2"], [])
    nodes = ["n1", *(f"n{number}" for number in range(8, 12)), "n3", "n4"]
    second = limit_to_nodes(first, nodes, allocated=sorted(nodes))
    assert second["SLURM_JOB_NODELIST"] == ",".join(nodes)
    assert list_used(second) == nodes
    assert list_hosts(second) == [node for node in nodes for _ in range(4)]


@pytest.mark.parametrize("text", ["", "x", "4(xx)"])
def test_unknown_counts_are_left_as_they_are(text: str) -> None:
    env = limit_to_nodes({**JOB, "SLURM_JOB_CPUS_PER_NODE": text}, ["n1"], allocated=["n1"])
    assert env["SLURM_JOB_CPUS_PER_NODE"] == text
