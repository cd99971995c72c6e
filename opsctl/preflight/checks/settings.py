"""Settings that often go wrong: names, cores, GPUs, and leftovers of debugging."""

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
        yield warning("job-name.long", name=name, chars=len(name), most=MAX_SHOWN_CHARS)


def cpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The body passes cpus_per_process to srun as SRUN_CPUS_PER_TASK. Other assignments override that value."""
    spec, environment = request.spec, request.train.environment
    per_rank = spec.cpus_per_process
    lines = "\n".join(request.train.setup.lines)
    texts = [environment["SRUN_CPUS_PER_TASK"]] if "SRUN_CPUS_PER_TASK" in environment else []
    for value in [*texts, *map(str, find_numbers(lines, "SRUN_CPUS_PER_TASK"))]:
        if value != str(per_rank):
            yield error("cpus.differ", value=value, cpus=per_rank)
    if "unset SRUN_CPUS_PER_TASK" in lines:
        yield error("cpus.unset")
    threads = parse_whole(environment.get("OMP_NUM_THREADS", ""))
    if threads is not None and threads > per_rank:
        yield warning("cpus.threads", threads=threads, cpus=per_rank)
    workers = number(request.recipe.flags, "num-workers")
    is_megatron = request.recipe.layers is not None  # Megatron's flags; its default is 2 workers
    if workers is None:
        workers = 2 if is_megatron else 0
    cores, ranks = per_rank * spec.processes_per_node, request.ranks_per_node
    if request.has_gpus and cores <= ranks:
        yield warning("cpus.shared", cpus=per_rank, cores=cores, ranks=ranks)
    elif request.has_gpus and not request.recipe.is_embedded and per_rank < 1 + workers:
        yield warning("cpus.workers", cpus=per_rank, workers=workers, needed=1 + workers)


def gpus(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    ranks, gpus = request.spec.processes_per_node, request.spec.gpus_per_node
    if gpus and ranks > gpus:
        yield error("gpus.shared", ranks=ranks, gpus=gpus)
    elif gpus and ranks < gpus and (ranks > 1 or request.recipe.is_embedded):
        yield warning("gpus.idle", ranks=ranks, gpus=gpus, idle=gpus - ranks)


def launcher(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """The command runs once per process, so a launcher in it would start all ranks of a node in every process."""
    lines, ranks = split_command(request.train.command), request.spec.processes_per_node
    launchers = [word for position, word in enumerate(lines) if _is_launcher(lines, position)]
    if launchers and ranks > 1:
        yield error("launcher.twice", launcher=launchers[0], ranks=ranks)


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
    for name, (value, cost) in LEFTOVERS.items():
        if name in environment and environment[name] not in {"0"} and value in {"", environment[name]}:
            yield warning("leftovers.set", name=name, value=environment[name], cost=cost)
