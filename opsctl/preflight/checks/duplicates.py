"""Numbers that are set in two places and must agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opsctl.checkpoints.trainer_command.shell import find_numbers
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.preflight.trainer_settings import number, parse_whole
from opsctl.slurm.batch_options import read_directives

NODES = ("NNODES", "NUM_NODES", "N_NODES")
RANKS = ("GPUS_PER_NODE", "NPROC_PER_NODE")
WORLD = ("WORLD_SIZE", "NGPUS", "N_GPUS")


def nodes(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare flags, variables and `#SBATCH` lines of scripts with [slurm] nodes."""
    spec = request.spec
    remedy = "use {{ nodes }} in the command, $NNODES in scripts"
    certain = [*_flagged(request, "nnodes", "num-nodes"), *_set(request, NODES)]
    in_settings = [] if request.recipe.nodes is None else [(request.recipe.name("nodes"), request.recipe.nodes)]
    for where, count in certain:
        if count != spec.nodes:
            text = f"{where} is {count}, and [slurm] nodes = {spec.nodes}: the ranks would wait for each other for ever"
            yield error(text, remedy)
    for where, count in [*in_settings, *list_assigned(facts.scripts, NODES), *_directive(facts, "nodes")]:
        if count != spec.nodes:
            text = f"{where} is {count}, and [slurm] nodes = {spec.nodes}: the ranks may wait for each other for ever"
            yield warning(text, remedy)


def ranks(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A launcher that Slurm starts once on a node starts one rank for each GPU."""
    spec = request.spec
    expected = spec.processes_per_node if spec.processes_per_node > 1 else request.gpus_per_node
    certain = [*_flagged(request, "nproc-per-node", "num-gpus", "gpus-per-node"), *_set(request, RANKS)]
    for where, count in [*certain, *list_assigned(facts.scripts, RANKS)] if expected else []:
        if count != expected:
            is_error = count > expected and (where, count) in certain
            yield (error if is_error else warning)(
                f"{where} is {count}, but a node has {expected} ranks", f"set {expected}"
            )
    world = spec.nodes * spec.processes_per_node
    certain = [*_flagged(request, "world-size"), *_set(request, WORLD)]
    for where, count in [*certain, *list_assigned(facts.scripts, WORLD)]:
        if spec.processes_per_node > 1 and count != world:
            yield (error if (where, count) in certain else warning)(
                f"{where} is {count}, and there are {spec.nodes} x {spec.processes_per_node} = {world} ranks",
                "use {{ world_size }} in the command, $WORLD_SIZE in scripts",
            )


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
    yield from _reckon_batch(request, facts.deepspeed)
    zero = facts.deepspeed.get("zero_optimization", {})
    stage = zero.get("stage") if isinstance(zero, dict) else None
    flag = number(recipe.flags, "zero-stage")
    if isinstance(stage, int) and flag is not None and flag != stage:
        yield error(f"--zero-stage is {flag}, but DeepSpeed's file has stage = {stage}", "set the same value in both")


def precision(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare the precision of the flags with that of DeepSpeed's file."""
    flags, settings = request.recipe.flags, facts.deepspeed
    in_file = [name for name in ("fp16", "bf16", "bfloat16") if _is_enabled(settings.get(name))]
    if "fp16" in in_file and len(in_file) > 1:
        yield error(
            f"DeepSpeed's file enables fp16 and {in_file[1]}: DeepSpeed refuses both together", "enable one of the two"
        )
    given = [name for name in ("fp16", "bf16") if name in flags and (flags[name] or ("true",))[0].lower() != "false"]
    if not given and "precision" in request.recipe.names:  # from a script
        given = [request.recipe.precision.partition("-")[0]]
    if len(given) > 1:
        problem = request.refuse if "precision" in request.recipe.refuses else warning
        yield problem("command: --fp16 and --bf16 together", "leave one of the two out")
    elif len({*request.recipe.precisions.values()}) > 1:
        settings_text = ", ".join(f"{name} ({kind})" for name, kind in request.recipe.precisions.items())
        yield warning(f"command: two precisions: {settings_text}", "leave one of the two out")
    for name in given if len(given) == 1 else []:
        other = [known for known in in_file if (known == "fp16") != (name == "fp16")]
        if other and len(other) == len(in_file):
            yield warning(
                f"command: --{name}, but DeepSpeed's file enables {other[0]}: the loss scale, or the range of"
                " numbers, is not the one that you expect",
                "set the same precision in both",
            )


def _is_enabled(table: Any) -> bool:
    return isinstance(table, dict) and table.get("enabled") is True


def _reckon_batch(request: LaunchRequest, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """DeepSpeed refuses a batch that is not micro batch x accumulation x replicas."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, accumulation = (settings.get(name) for name in names)
    if not (isinstance(batch, int) and isinstance(micro, int) and isinstance(accumulation, int)):
        return
    replicas = request.recipe.replicas(request.world)
    if batch != micro * accumulation * replicas:
        yield warning(
            f"DeepSpeed's file has train_batch_size = {batch}, but micro batch {micro} x accumulation {accumulation} x"
            f" {replicas} replicas = {micro * accumulation * replicas}",
            "leave one of the three out: DeepSpeed computes the third",
        )


def _flagged(request: LaunchRequest, *names: str) -> Iterator[tuple[str, int]]:
    for name in names:
        if (count := number(request.recipe.flags, name)) is not None:
            yield f"command: --{name}", count


def _set(request: LaunchRequest, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        if (number := parse_whole(request.train.environment.get(name, ""))) is not None:
            yield f"[environment] {name}", number
    yield from list_assigned(request.texts, names)


def list_assigned(texts: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the numbers that texts assign to variables, each with its place."""
    for where, text in texts.items():
        for name in names:
            yield from ((f"{where}: {name}", count) for count in find_numbers(text, name))


def _directive(facts: Facts, name: str) -> Iterator[tuple[str, int]]:
    for where, text in facts.scripts.items():
        if (number := parse_whole(read_directives(text).get(name, ""))) is not None:
            yield f"{where}: #SBATCH --{name}", number
