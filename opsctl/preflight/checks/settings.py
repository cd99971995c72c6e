"""Settings that others trip over: names, secrets, cores, GPUs, and what was only meant for looking for a bug."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from opsctl.preflight.command_flags import find_assignments, number, parse_whole, words
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning

SHOWN = 40
"""Columns that the BLOOM team's slurm-status.py gives a name; squeue by itself gives it 8."""
SECRET = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)$")
LEFTOVERS: dict[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel is waited for"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of a node do not use NVLink: some 23 % slower"),
    "NCCL_IB_DISABLE": ("1", "nodes talk by TCP"),
    "NCCL_DEBUG": ("TRACE", "every call of NCCL is logged"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked by another one"),
    "CUDA_VISIBLE_DEVICES": ("", "GPUs are hidden that Slurm has given"),
}
"""By variable: the value that is only for looking for a bug (any, where empty), and what it costs."""


def job_name(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    name = request.spec.name
    if len(name) > SHOWN:
        yield warning(
            f"name = {name!r} has {len(name)} characters: tools that show {SHOWN} never find the job by its name",
            f"at most {SHOWN}",
        )


def secrets(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    for name in request.train.environment:
        if SECRET.search(name):
            yield error(
                f"[environment] {name}: would stand in body.sh for all to read",
                "put it in a file that only you can read, and `source` that in [setup] lines",
            )


def cpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The body repeats sbatch's cores to srun by SRUN_CPUS_PER_TASK; what sets that otherwise undoes it."""
    spec, environment = request.spec, request.train.environment
    lines = "\n".join(request.train.setup.lines)
    texts = [environment["SRUN_CPUS_PER_TASK"]] if "SRUN_CPUS_PER_TASK" in environment else []
    for value in [*texts, *map(str, find_assignments(lines, "SRUN_CPUS_PER_TASK"))]:
        if value != str(spec.cpus_per_process):
            yield error(
                f"SRUN_CPUS_PER_TASK = {value} beside [slurm] cpus_per_process = {spec.cpus_per_process}: srun gives"
                f" each rank {value}",
                "leave it out: opsctl sets it from cpus_per_process",
            )
    if "unset SRUN_CPUS_PER_TASK" in lines:
        yield error("[setup] lines: unset SRUN_CPUS_PER_TASK: srun gives each rank 1 core", "leave it out")
    threads = parse_whole(environment.get("OMP_NUM_THREADS", ""))
    if threads is not None and threads > spec.cpus_per_process:
        yield warning(
            f"[environment] OMP_NUM_THREADS = {threads}: each rank has {spec.cpus_per_process} cores",
            "cpus_per_process at least as large",
        )
    workers = number(request.recipe.flags, "num-workers")
    known = request.recipe.layers is not None  # Megatron's flags, whose default it is
    needed = 1 + (workers if workers is not None else 2 if known else 0)
    if request.has_gpus and not request.recipe.is_embedded and spec.cpus_per_process < needed:
        yield warning(
            f"[slurm] cpus_per_process = {spec.cpus_per_process}: a rank and its {needed - 1} DataLoader workers want"
            f" {needed} cores",
            "more cores, or fewer workers",
        )


def gpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    spec = request.spec
    ranks, there = spec.processes_per_node, spec.gpus_per_node
    if there and ranks > there:
        yield error(
            f"[slurm] processes_per_node = {ranks}: a node's {there} GPUs would be shared, and NCCL refuses that",
            f"processes_per_node = {there}",
        )
    elif there and ranks < there and (ranks > 1 or request.recipe.is_embedded):
        yield warning(
            f"[slurm] processes_per_node = {ranks} beside gpus_per_node = {there}: {there - ranks} GPUs of each node"
            " stand idle",
            f"processes_per_node = {there}",
        )


def launcher(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The command runs once per process: a launcher in it starts a node's ranks once per process."""
    lines, ranks = words(request.train.command), request.spec.processes_per_node
    found = [
        word
        for word in lines
        if Path(word).name in {"torchrun", "deepspeed", "torch.distributed.run", "torch.distributed.launch"}
    ]
    if found and ranks > 1:
        yield error(
            f"command: {found[0]} starts a node's ranks, and [slurm] processes_per_node = {ranks} starts {found[0]}"
            f" {ranks} times",
            "leave the launcher out (RANK, WORLD_SIZE and LOCAL_RANK are set), or processes_per_node = 1",
        )


def leftovers(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    environment = request.train.environment
    for name, (value, costs) in LEFTOVERS.items():
        if name in environment and environment[name] not in {"0"} and value in {"", environment[name]}:
            yield warning(
                f"[environment] {name} = {environment[name]}: {costs}", "take it out, unless you have measured it"
            )
