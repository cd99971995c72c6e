"""Numbers that are set in two places and must agree."""

from collections.abc import Iterable, Iterator, Mapping

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
    for where, count in [*in_settings, *list_assigned(facts.scripts, NODES), *_list_directives(facts)]:
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


def list_flags(request: LaunchRequest, *names: str) -> Iterator[tuple[str, int]]:
    """Yield the numbers of the command's flags, each with its place."""
    for name in names:
        if (count := number(request.recipe.flags, name)) is not None:
            yield f"command: --{name}", count


def list_variables(request: LaunchRequest, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the numbers of variables in TRAIN.toml, each with its place."""
    for name in names:
        if (count := parse_whole(request.train.environment.get(name, ""))) is not None:
            yield f"[environment] {name}", count
    yield from list_assigned(request.texts, names)


def list_assigned(texts: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the numbers that texts assign to variables, each with its place."""
    for where, text in texts.items():
        for name in names:
            yield from ((f"{where}: {name}", count) for count in find_numbers(text, name))


def _list_directives(facts: Facts) -> Iterator[tuple[str, int]]:
    for where, text in facts.scripts.items():
        if (count := parse_whole(read_directives(text).get("nodes", ""))) is not None:
            yield f"{where}: #SBATCH --nodes", count
