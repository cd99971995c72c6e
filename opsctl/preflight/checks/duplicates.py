"""Numbers that are set in two places and must agree."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opsctl.checkpoints.trainer_command.shell import find_numbers
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, error_if, warning
from opsctl.preflight.trainer_settings import number, parse_whole
from opsctl.slurm.batch_options import read_directives

NODES = ("NNODES", "NUM_NODES", "N_NODES")
RANKS = ("GPUS_PER_NODE", "NPROC_PER_NODE")
WORLD = ("WORLD_SIZE", "NGPUS", "N_GPUS")


def nodes(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare flags, variables and `#SBATCH` lines of scripts with [slurm] nodes."""
    nodes, recipe = request.spec.nodes, request.recipe
    in_settings = [] if recipe.nodes is None else [(recipe.name("nodes"), recipe.nodes)]
    for where, count in [*list_flags(request, "nnodes", "num-nodes"), *list_variables(request, NODES)]:
        if count != nodes:
            yield error("nodes.differ", where=where, count=count, nodes=nodes)
    for where, count in [*in_settings, *list_assigned(facts.scripts, NODES), *_directive(facts, "nodes")]:
        if count != nodes:
            yield warning("nodes.may_differ", where=where, count=count, nodes=nodes)


def ranks(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A launcher that Slurm starts once on a node starts one rank for each GPU."""
    nodes, ranks = request.spec.nodes, request.spec.processes_per_node
    expected = ranks if ranks > 1 else request.gpus_per_node
    flags = list_flags(request, "nproc-per-node", "num-gpus", "gpus-per-node")
    certain = [*flags, *list_variables(request, RANKS)]
    for where, count in [*certain, *list_assigned(facts.scripts, RANKS)] if expected else []:
        if count != expected:
            is_certain = count > expected and (where, count) in certain
            yield error_if(is_certain, "ranks.node", where=where, count=count, expected=expected)
    certain = [*list_flags(request, "world-size"), *list_variables(request, WORLD)]
    for where, count in [*certain, *list_assigned(facts.scripts, WORLD)]:
        if ranks > 1 and count != nodes * ranks:
            numbers = {"count": count, "nodes": nodes, "ranks": ranks, "world": nodes * ranks}
            yield error_if((where, count) in certain, "ranks.world", where=where, **numbers)


def batch_twice(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare DeepSpeed's file with the flags of the command."""
    recipe, settings = request.recipe, facts.deepspeed
    zero = settings.get("zero_optimization", {})
    stage = zero.get("stage") if isinstance(zero, dict) else None
    for name, here, key, there in (
        (
            recipe.name("micro_batch"),
            recipe.micro_batch,
            "train_micro_batch_size_per_gpu",
            settings.get("train_micro_batch_size_per_gpu"),
        ),
        (recipe.name("global_batch"), recipe.global_batch, "train_batch_size", settings.get("train_batch_size")),
        ("--zero-stage", number(recipe.flags, "zero-stage"), "stage", stage),
    ):
        if isinstance(there, int) and here is not None and here != there:
            yield error("batch-twice.differ", name=name, here=here, key=key, there=there)
    yield from _reckon_batch(request, settings)


def precision(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Compare the precision of the flags with that of DeepSpeed's file."""
    flags, settings = request.recipe.flags, facts.deepspeed
    in_file = [name for name in ("fp16", "bf16", "bfloat16") if _is_enabled(settings.get(name))]
    if "fp16" in in_file and len(in_file) > 1:
        yield error("precision.both_in_file", other=in_file[1])
    given = [name for name in ("fp16", "bf16") if name in flags and (flags[name] or ("true",))[0].lower() != "false"]
    if not given and "precision" in request.recipe.names:  # from a script
        given = [request.recipe.precision.partition("-")[0]]
    if len(given) > 1:
        yield error_if("precision" in request.recipe.refuses and request.is_certain, "precision.both")
    elif len({*request.recipe.precisions.values()}) > 1:
        set_by = tuple(f"{name} ({kind})" for name, kind in request.recipe.precisions.items())
        yield warning("precision.two", settings=set_by)
    for name in given if len(given) == 1 else []:
        other = [known for known in in_file if (known == "fp16") != (name == "fp16")]
        if other and len(other) == len(in_file):
            yield warning("precision.differ", name=name, other=other[0])


def _is_enabled(table: Any) -> bool:
    return isinstance(table, dict) and table.get("enabled") is True


def _reckon_batch(request: LaunchRequest, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """DeepSpeed refuses a batch that is not micro batch x accumulation x replicas."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, accumulation = (settings.get(name) for name in names)
    if not (isinstance(batch, int) and isinstance(micro, int) and isinstance(accumulation, int)):
        return
    replicas = request.recipe.replicas(request.world)
    product = micro * accumulation * replicas
    if batch != product:
        numbers = {"batch": batch, "micro": micro, "accumulation": accumulation, "replicas": replicas}
        yield warning("batch-twice.product", **numbers, product=product)


def list_flags(request: LaunchRequest, *names: str) -> Iterator[tuple[str, int]]:
    """Yield the numbers of the command's flags, each with its place."""
    for name in names:
        if (count := number(request.recipe.flags, name)) is not None:
            yield f"command: --{name}", count


def list_variables(
    request: LaunchRequest, names: Iterable[str], scripts: Mapping[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """Yield the numbers of variables in TRAIN.toml and in `scripts`, each with its place."""
    for name in names:
        if (count := parse_whole(request.train.environment.get(name, ""))) is not None:
            yield f"[environment] {name}", count
    yield from list_assigned({**request.texts, **(scripts or {})}, names)


def list_assigned(texts: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the numbers that texts assign to variables, each with its place."""
    for where, text in texts.items():
        for name in names:
            yield from ((f"{where}: {name}", count) for count in find_numbers(text, name))


def _directive(facts: Facts, name: str) -> Iterator[tuple[str, int]]:
    for where, text in facts.scripts.items():
        if (count := parse_whole(read_directives(text).get(name, ""))) is not None:
            yield f"{where}: #SBATCH --{name}", count
