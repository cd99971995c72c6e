"""Numbers that are set in two places and must agree."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.command_flags import directives, find_assignments, number, parse_whole
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error

NODES = ("NNODES", "NUM_NODES", "N_NODES")
RANKS = ("GPUS_PER_NODE", "NPROC_PER_NODE")
WORLD = ("WORLD_SIZE", "NGPUS", "N_GPUS")


def nodes(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare flags, variables and `#SBATCH` lines of scripts with [slurm] nodes."""
    spec = request.spec
    counts = [
        *_flagged(request, "nnodes", "num-nodes"),
        *_set(request, facts, NODES),
        *_directive(facts, "--nodes"),
    ]
    for where, count in counts:
        if count != spec.nodes:
            yield error(
                f"{where} is {count}, and [slurm] nodes = {spec.nodes}: the ranks would wait for each other for ever",
                "use {{ nodes }} in the command, $NNODES in scripts",
            )


def ranks(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    spec = request.spec
    world = spec.nodes * spec.processes_per_node
    for where, count in [
        *_flagged(request, "nproc-per-node", "num-gpus", "gpus-per-node"),
        *_set(request, facts, RANKS),
    ]:
        expected = _ranks_per_node(request)
        if count != expected:
            yield error(f"{where} is {count}, but a node has {expected} ranks", f"set {expected}")
    for where, count in [*_flagged(request, "world-size"), *_set(request, facts, WORLD)]:
        if spec.processes_per_node > 1 and count != world:
            yield error(
                f"{where} is {count}, and there are {spec.nodes} x {spec.processes_per_node} = {world} ranks",
                "use {{ world_size }} in the command, $WORLD_SIZE in scripts",
            )


def _ranks_per_node(request: LaunchRequest) -> int:
    """A launcher that runs once per node starts one rank for each GPU."""
    spec = request.spec
    return spec.processes_per_node if spec.processes_per_node > 1 else spec.gpus_per_node or 1


def batch_twice(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare DeepSpeed's file with the flags of the command."""
    recipe = request.recipe
    for ours, theirs in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("global_batch", "train_batch_size"),
    ):
        here, there = getattr(recipe, ours), facts.deepspeed.get(theirs)
        if isinstance(there, int) and here is not None and here != there:
            yield error(
                f"{recipe.name(ours)} is {here}, but DeepSpeed's file has {theirs} = {there}",
                "set the same value in both",
            )
    zero = facts.deepspeed.get("zero_optimization", {})
    stage = zero.get("stage") if isinstance(zero, dict) else None
    flag = number(recipe.flags, "zero-stage")
    if isinstance(stage, int) and flag is not None and flag != stage:
        yield error(f"--zero-stage is {flag}, but DeepSpeed's file has stage = {stage}", "set the same value in both")


def _flagged(request: LaunchRequest, *names: str) -> Iterator[tuple[str, int]]:
    for name in names:
        if (count := number(request.recipe.flags, name)) is not None:
            yield f"command: --{name}", count


def _set(request: LaunchRequest, facts: Facts, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    texts = {
        "command": "\n".join(request.train.command),
        "[setup] lines": "\n".join(request.train.setup.lines),
        **facts.scripts,
    }
    for name in names:
        if (number := parse_whole(request.train.environment.get(name, ""))) is not None:
            yield f"[environment] {name}", number
        for where, text in texts.items():
            yield from ((f"{where}: {name}", count) for count in find_assignments(text, name))


def _directive(facts: Facts, name: str) -> Iterator[tuple[str, int]]:
    for where, text in facts.scripts.items():
        if (number := parse_whole(directives(text).get(name, ""))) is not None:
            yield f"{where}: #SBATCH {name}", number
