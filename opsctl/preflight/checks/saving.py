"""Checkpoints, from interval and space to whether the next task goes on where the last one ended; and evaluation."""

from collections.abc import Iterator
from dataclasses import asdict

from opsctl.base.units import format_step_time
from opsctl.calc import save_interval as calc
from opsctl.calc.spares import mtbf_hours
from opsctl.checkpoints.catalog import size_of
from opsctl.preflight.estimates import estimate_step
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, error, error_if, warning
from opsctl.preflight.table_checks import TableCheck
from opsctl.trainer import footprint, manifest
from opsctl.trainer.rank_layout import describe_topology, layout

FAILURES = 6.5
"""Failures per 1000 node-days (Meta's RSC-1, arXiv 2410.21680)."""
MAX_SAVING_SHARE = 0.05
"""Share of the time for saving and for repeated work above which another interval is proposed."""
COPY_SHARE = 0.1
"""Share of a background save during which training stops for the copy (docs/explanation/performance.md)."""
OWN_FILES = 3
"""Files of a checkpoint that its manifest does not list: the manifest itself, its mark, and its directory."""


def interval(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    recipe, limit_s = request.recipe, request.limit_s
    name = recipe.name("save_every")
    yield from TableCheck("interval")(request, facts)
    speed = estimate_step(request, facts)
    if not recipe.save_every or not limit_s or speed.step_s is None or speed.save_s is None:
        return
    every_s = recipe.save_every * speed.step_s
    if every_s > limit_s:
        yield warning(
            "interval.beyond_task",
            name=name,
            steps=recipe.save_every,
            step_time=format_step_time(speed.step_s),
            every_s=every_s,
            limit_s=limit_s,
        )
        return
    mtbf_s = 3600 * mtbf_hours(request.spec.nodes, FAILURES)
    stall_s = _stall_s(request, speed.save_s, every_s)
    best_s = max(speed.step_s, calc.daly(_stall_s(request, speed.save_s, mtbf_s), mtbf_s))
    cost = calc.cost(interval_s=every_s, save_s=stall_s, mtbf_s=mtbf_s)
    best = calc.cost(interval_s=best_s, save_s=_stall_s(request, speed.save_s, best_s), mtbf_s=mtbf_s)
    if cost.total > max(MAX_SAVING_SHARE, 2 * best.total):
        yield warning(
            "interval.costly",
            name=name,
            steps=recipe.save_every,
            stall_s=stall_s,
            every_s=every_s,
            cost=cost.total,
            saving=cost.saving,
            failing=cost.failing,
            best_s=best_s,
            best_cost=best.total,
            best_steps=calc.in_steps(best_s, speed.step_s),
        )


def _stall_s(request: LaunchRequest, save_s: float, every_s: float) -> float:
    """Return how long training stops for a save. A background save stops training for its copy, and for a late save."""
    config = request.recipe.embedded
    if config is None or not config.checkpoint.background:
        return save_s
    return max(COPY_SHARE * save_s, save_s - every_s)


def space(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.free_space and (size := _size(request, facts.saved)):
        yield from _check_room(request, facts, "space", value=size, free=facts.free_space.free)


def inodes(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    files = len(facts.saved.files) + OWN_FILES if facts.saved else _files(request)
    if facts.free_space and facts.free_space.inodes_free is not None and files:
        yield from _check_room(request, facts, "inodes", value=files, free=facts.free_space.inodes_free)


def _check_room(request: LaunchRequest, facts: Facts, check: str, *, value: float, free: float) -> Iterator[Problem]:
    planned = _planned_checkpoints(request, facts)
    least, fit = 1 if facts.saved else 2, int(free // value)
    filesystem = facts.free_space.filesystem if facts.free_space else ""
    room: dict[str, Fact] = {"filesystem": filesystem, "free": free, "value": value, "fit": fit}
    if fit < least:
        # Of another trainer the size is an estimate, and its optimizer or its format may be smaller.
        is_certain = facts.saved is not None or request.recipe.is_embedded
        yield error_if(is_certain, f"{check}.too_small", **room, least=least)
    elif planned is not None and fit < planned:
        yield warning(f"{check}.fills", **room, planned=planned)


def _planned_checkpoints(request: LaunchRequest, facts: Facts) -> int | None:
    """Return how many checkpoints are still to be written and kept, with the unfinished one; None if unknown."""
    recipe = request.recipe
    if not recipe.steps or not recipe.save_every:
        return None
    left = max(0, recipe.steps - (facts.saved.step if facts.saved else 0))
    if not recipe.keep_last:
        return -(-left // recipe.save_every)
    rolling = max(2, recipe.keep_last) + 1 - facts.saved_count
    return max(1, rolling) + (left // recipe.keep_every if recipe.keep_every else 0)


def _size(request: LaunchRequest, saved: manifest.Manifest | None) -> float:
    if saved and (size := size_of(saved)):
        return size
    if request.recipe.embedded:
        return footprint.checkpoint_bytes(request.recipe.embedded)
    return calc.size_bytes(request.recipe.parameters() or 0)


def _files(request: LaunchRequest) -> int:
    """Return the files of a DeepSpeed checkpoint: one for each layer and tensor rank, and two for each rank."""
    recipe, world = request.recipe, request.world
    if not recipe.layers or not recipe.save_every:
        return 0
    return (recipe.layers + 3) * recipe.tensor + 2 * world + recipe.model_ranks + OWN_FILES


def resume(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Apply the rules of the embedded trainer. The checkpoints of other trainers are not known."""
    saved, config = facts.saved, request.recipe.embedded
    if saved is None or config is None:
        return
    differences = manifest.find_differences(saved, config)
    if differences and not (config.accept and manifest.can_accept(differences, config)):
        yield error("resume.differs", step=saved.step, differences=_show(differences))
    elif cuts := manifest.find_other_cuts(saved, describe_topology(config, layout(config, request.world))):
        yield warning("resume.reshapes", step=saved.step, differences=_show(cuts), gigabytes=size_of(saved) / 1e9)


def _show(differences: manifest.Differences) -> str:
    values = differences.items()
    return "; ".join(f"{key} is {there} in the checkpoint and {here} here" for key, (there, here) in values)


def save(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for shared in facts.shared_saves:
        kind = "save.same" if shared.path == shared.other_path else "save.shared"
        yield warning(kind, **asdict(shared))
    yield from TableCheck("save")(request, facts)
