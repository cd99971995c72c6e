"""Settings that often go wrong: names, cores, GPUs, and leftovers of debugging."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from opsctl.checkpoints.trainer_command.shell import END, find_numbers, split_command
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.preflight.trainer_settings import number, parse_whole

MAX_SHOWN_CHARS = 40
"""Columns for a name in the BLOOM team's slurm-status.py; squeue shows 8 by default."""
WRAPPERS = frozenset({"exec", "srun", "env", "time", "nohup", "numactl", "then", "do", END})
"""Words before a program."""
LEFTOVERS: dict[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", "the CPU waits for every kernel"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of a node do not use NVLink: some 23 % slower"),
    "NCCL_IB_DISABLE": ("1", "nodes communicate by TCP"),
    "NCCL_DEBUG": ("TRACE", "NCCL logs every call"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "a second collective checks every collective"),
    "CUDA_VISIBLE_DEVICES": ("", "GPUs that Slurm has allocated are hidden"),
}
"""By variable: the value that is useful for debugging only (empty: any value), and its cost."""


def job_name(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    name = request.spec.name
    if len(name) > MAX_SHOWN_CHARS:
        yield warning(
            f"name = {name!r} has {len(name)} characters: tools that show {MAX_SHOWN_CHARS} cannot find the job",
            f"use at most {MAX_SHOWN_CHARS}",
        )


def cpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The body passes cpus_per_process to srun as SRUN_CPUS_PER_TASK. Other assignments override that value."""
    spec, environment = request.spec, request.train.environment
    lines = "\n".join(request.train.setup.lines)
    texts = [environment["SRUN_CPUS_PER_TASK"]] if "SRUN_CPUS_PER_TASK" in environment else []
    for value in [*texts, *map(str, find_numbers(lines, "SRUN_CPUS_PER_TASK"))]:
        if value != str(spec.cpus_per_process):
            yield error(
                f"SRUN_CPUS_PER_TASK = {value} beside [slurm] cpus_per_process = {spec.cpus_per_process}: srun gives"
                f" each rank {value}",
                "remove SRUN_CPUS_PER_TASK: opsctl sets the variable from cpus_per_process",
            )
    if "unset SRUN_CPUS_PER_TASK" in lines:
        yield error("[setup] lines: unset SRUN_CPUS_PER_TASK: srun gives each rank 1 core", "remove this line")
    threads = parse_whole(environment.get("OMP_NUM_THREADS", ""))
    if threads is not None and threads > spec.cpus_per_process:
        yield warning(
            f"[environment] OMP_NUM_THREADS = {threads}: each rank has {spec.cpus_per_process} cores",
            f"set cpus_per_process to at least {threads}",
        )
    workers = number(request.recipe.flags, "num-workers")
    is_megatron = request.recipe.layers is not None  # Megatron's flags; its default is 2 workers
    if workers is None:
        workers = 2 if is_megatron else 0
    needed = 1 + workers
    cores, ranks = spec.cpus_per_process * spec.processes_per_node, request.ranks_per_node
    if request.has_gpus and cores <= ranks:
        yield warning(
            f"[slurm] cpus_per_process = {spec.cpus_per_process}: {cores} cores for the {ranks} ranks of a node:"
            " Python, NCCL and the data loader share a core",
            "set cpus_per_process to the cores of a node / processes_per_node",
        )
    elif request.has_gpus and not request.recipe.is_embedded and spec.cpus_per_process < needed:
        yield warning(
            f"[slurm] cpus_per_process = {spec.cpus_per_process}: a rank and its {needed - 1} DataLoader workers need"
            f" {needed} cores",
            "set more cores, or fewer workers",
        )


def gpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    spec = request.spec
    ranks, gpus = spec.processes_per_node, spec.gpus_per_node
    if gpus and ranks > gpus:
        yield error(
            f"[slurm] processes_per_node = {ranks}: ranks would share the {gpus} GPUs of a node, which NCCL refuses",
            f"set processes_per_node = {gpus}",
        )
    elif gpus and ranks < gpus and (ranks > 1 or request.recipe.is_embedded):
        yield warning(
            f"[slurm] processes_per_node = {ranks} beside gpus_per_node = {gpus}: {gpus - ranks} GPUs of each node"
            " are idle",
            f"set processes_per_node = {gpus}",
        )


def launcher(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The command runs once per process, so a launcher in it would start all ranks of a node in every process."""
    lines, ranks = split_command(request.train.command), request.spec.processes_per_node
    launchers = [word for position, word in enumerate(lines) if _is_launcher(lines, position)]
    if launchers and ranks > 1:
        yield error(
            f"command: {launchers[0]} starts all ranks of a node, but [slurm] processes_per_node = {ranks}"
            f" starts {launchers[0]} {ranks} times",
            "remove the launcher (RANK, WORLD_SIZE and LOCAL_RANK are set), or set processes_per_node = 1",
        )


def _is_launcher(words: list[str], position: int) -> bool:
    """Return whether a word is a program that starts the ranks of a node, and not the value of an option."""
    name, before = Path(words[position]).name, words[position - 1] if position else ""
    if before == "-m":
        return name in {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
    if name == "deepspeed":  # also the name of a strategy
        return position == 0 or before in WRAPPERS or bool(re.fullmatch(r"\w+=.*", before))
    is_program = position == 0 or not before.startswith("-")
    if name == "accelerate":
        return is_program and words[position + 1 : position + 2] == ["launch"]
    return is_program and name == "torchrun" and "=" not in words[position]


def leftovers(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    environment = request.train.environment
    for name, (value, costs) in LEFTOVERS.items():
        if name in environment and environment[name] not in {"0"} and value in {"", environment[name]}:
            yield warning(
                f"[environment] {name} = {environment[name]}: {costs}",
                "remove the variable, unless you have measured its effect",
            )
