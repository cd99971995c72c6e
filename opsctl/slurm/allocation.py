"""The nodes that one start of a job uses, when these are not all its nodes: it has spares, or has lost a node."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from opsctl.base.nodesets import expand_if_list, fold
from opsctl.slurm.job_environment import own_nodes

ALLOCATED = "OPSCTL_ALLOCATED_NODES"
"""The nodes of the job that may be used, in Slurm's notation, for starts that use a part of them."""
CHOSEN = "TRAIN_NODES"
"""The nodes of this start in the order of their ranks, for the step of the body."""
HOST_FILE = "TRAIN_HOST_FILE"
"""A file with the node of each rank, for a start whose ranks are not in Slurm's order of nodes; else empty."""
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


def list_allocated(env: Mapping[str, str]) -> list[str]:
    """Return the nodes of the job that may be used, in Slurm's order; empty if their list cannot be read."""
    return list(expand_if_list(env.get(ALLOCATED) or own_nodes(env)))


def list_used(env: Mapping[str, str]) -> list[str]:
    """Return the nodes of this start in the order of their ranks; empty if their list cannot be read."""
    return env[CHOSEN].split(",") if env.get(CHOSEN) else list(expand_if_list(own_nodes(env)))


def list_hosts(env: Mapping[str, str]) -> list[str]:
    """Return the node of each rank, if the ranks are not in Slurm's order of nodes; else nothing."""
    used = list_used(env)
    if list(expand_if_list(env.get(CHOSEN, ""))) == used:
        return []
    tasks = _read_counts(env.get("SLURM_TASKS_PER_NODE", ""))
    return list(chain.from_iterable([node] * count for node, count in zip(used, tasks, strict=False)))


def use_nodes(env: Mapping[str, str], nodes: Sequence[str], *, allocated: Sequence[str]) -> dict[str, str]:
    """Return the environment of a start on `nodes` of the job, of which `allocated` may be used.

    Trainers and launchers read Slurm's variables: what these say of the job, they say of `nodes` alone.
    """
    all_nodes, chosen, count = list_allocated(env), ",".join(nodes), str(len(nodes))
    per_node = _read_counts(env.get("SLURM_NTASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", ""))
    tasks = per_node[0] if per_node else 1
    cpus = _read_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    changed = {ALLOCATED: fold(allocated), CHOSEN: chosen, "SLURM_JOB_NODELIST": chosen, "SLURM_NODELIST": chosen}
    changed |= {"SLURM_NNODES": count, "SLURM_JOB_NUM_NODES": count, "SLURM_TASKS_PER_NODE": f"{tasks}(x{count})"}
    changed |= {"SLURM_NTASKS": str(tasks * len(nodes)), "SLURM_NPROCS": str(tasks * len(nodes))}
    if len(cpus) == len(all_nodes):
        by_node = dict(zip(all_nodes, cpus, strict=True))
        changed["SLURM_JOB_CPUS_PER_NODE"] = ",".join(str(by_node[node]) for node in nodes)
    return {**env, **changed}


def _read_counts(text: str) -> list[int]:
    """Return the number for each node of `4(x2),2`."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = _COUNT.fullmatch(part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
