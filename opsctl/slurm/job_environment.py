"""What the environment of a process in a job says about the job, by the variables that Slurm sets.

One start of a job need not use all nodes of the job: a job may have spares, or may have lost a node.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from opsctl.base.nodesets import expand_if_list, fold

PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")
ALLOCATED = "OPSCTL_ALLOCATED_NODES"
"""The nodes of the job that may be used, in Slurm's notation, for starts that use a part of them."""
CHOSEN = "TRAIN_NODES"
"""The nodes of this start in the order of their ranks, for the step of the body."""
HOST_FILE = "TRAIN_HOST_FILE"
"""A file with the node of each rank, for a start whose ranks are not in Slurm's order of nodes; else empty."""
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


def own_job(env: Mapping[str, str]) -> str:
    """Return the id of the job that this process runs in; empty outside a job."""
    return env.get("SLURM_JOB_ID", "")


def own_task(env: Mapping[str, str]) -> str:
    """Return the task that this process runs in: `12_3`, `12` outside an array, empty outside a job."""
    task = env.get("SLURM_ARRAY_TASK_ID")
    return f"{env['SLURM_ARRAY_JOB_ID']}_{task}" if task else own_job(env)


def count_restarts(env: Mapping[str, str]) -> int:
    """Return how often Slurm has started the job anew. Slurm may start a job anew without counting it."""
    return int(env.get("SLURM_RESTART_COUNT") or 0)


def own_nodes(env: Mapping[str, str]) -> str:
    """Return the nodes of the job in Slurm's notation; empty if unknown."""
    return env.get("SLURM_JOB_NODELIST", "")


def count_nodes(env: Mapping[str, str]) -> int:
    return int(env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or 1)


def own_node(env: Mapping[str, str]) -> str:
    """Return the node that this process runs on, by Slurm's name; empty if unknown."""
    return env.get("SLURMD_NODENAME", "")


def own_gpus(env: Mapping[str, str]) -> str:
    """Return the GPUs of this node, as Slurm lists them."""
    return env.get("SLURM_JOB_GPUS") or env.get("CUDA_VISIBLE_DEVICES", "")


def own_end(env: Mapping[str, str]) -> datetime | None:
    """Return when the job reaches its time limit; None if unknown: Slurm before 23.02 does not say it (sbatch(1))."""
    end = env.get("SLURM_JOB_END_TIME", "")
    return datetime.fromtimestamp(int(end), UTC) if end.isdecimal() else None


def submit_directory(env: Mapping[str, str]) -> str:
    """Return the directory in which the job was submitted, by default the working directory."""
    return env.get("SLURM_SUBMIT_DIR") or "."


def unset_slurm_variables(env: Mapping[str, str]) -> dict[str, None]:
    """Return the Slurm variables to unset: those of a surrounding job, and defaults for commands typed by hand."""
    return dict.fromkeys({name for name in env if name.startswith(PREFIXES)} - {"SLURM_CONF"})


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


def limit_to_nodes(env: Mapping[str, str], nodes: Sequence[str], *, allocated: Sequence[str]) -> dict[str, str]:
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
