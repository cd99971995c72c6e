"""Checkpoints (interval, space, resume) and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsctl.base.units import format_duration, format_size, format_step_time, parse_slurm_minutes
from opsctl.calc import save_interval as calc
from opsctl.calc.spares import mtbf_hours
from opsctl.preflight.facts import Facts, SavedCheckpoint
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.preflight.step_estimate import estimate_step
from opsctl.trainer import footprint, manifest

FAILURES = 6.5
"""Failures per 1000 node-days (Meta's RSC-1, arXiv 2410.21680)."""
MAX_SAVING_SHARE = 0.05
"""Share of the time for saving and for repeated work above which another interval is proposed."""
MAX_EVALUATION_SHARE = 0.02
"""tr1-13B spent 3 % of its time on 100 batches every 1000 steps, and reduced the batches to 5."""
COPY_SHARE = 0.1
"""Share of a background save during which training stops for the copy (docs/explanation/performance.md)."""
MODEL_FIELDS = ("family", "layers", "hidden", "heads", "sequence", "vocabulary")
"""Settings that a checkpoint and the model must share."""


def interval(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    recipe, limit_s = request.recipe, 60.0 * (parse_slurm_minutes(request.spec.time_limit) or 0)
    name = recipe.name("save_every")
    if recipe.save_every == 0:
        value = "no" if "strategy" in name else "0"
        yield warning(
            f"{name} is {value}: a failure costs all work of a task, up to {format_duration(limit_s)}",
            "save every few hours: opsctl plan checkpoint",
        )
    speed = estimate_step(request, facts)
    if not recipe.save_every or not limit_s or speed.step_s is None or speed.save_s is None:
        return
    every_s = recipe.save_every * speed.step_s
    if every_s > limit_s:
        yield warning(
            f"{name} is {recipe.save_every}: at {format_step_time(speed.step_s)} a step a save is due every"
            f" {format_duration(every_s)}, and a task ends after {format_duration(limit_s)}",
            "set a shorter interval",
        )
        return
    mtbf_s = 3600 * mtbf_hours(request.spec.nodes, FAILURES)
    stall_s = _stall_s(request, speed.save_s, every_s)
    best_s = max(speed.step_s, calc.daly(_stall_s(request, speed.save_s, mtbf_s), mtbf_s))
    cost = calc.cost(interval_s=every_s, save_s=stall_s, mtbf_s=mtbf_s)
    best = calc.cost(interval_s=best_s, save_s=_stall_s(request, speed.save_s, best_s), mtbf_s=mtbf_s)
    if cost.total > max(MAX_SAVING_SHARE, 2 * best.total):
        yield warning(
            f"{name} is {recipe.save_every}: stopping {format_duration(stall_s)} for a save every"
            f" {format_duration(every_s)} costs {cost.total:.1%} of the time ({cost.saving:.1%} saving,"
            f" {cost.failing:.1%} repeated work); every {format_duration(best_s)} costs {best.total:.1%}",
            f"save every {calc.in_steps(best_s, speed.step_s)} steps",
        )


def evaluation(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """A forward pass takes a third of a step (calc.throughput.passes)."""
    recipe = request.recipe
    if not recipe.evaluate_every or not recipe.evaluate_batches:
        return
    share = recipe.evaluate_batches / 3 / recipe.evaluate_every
    if share > MAX_EVALUATION_SHARE:
        yield warning(
            f"{recipe.name('evaluate_batches')} is {recipe.evaluate_batches}: every {recipe.evaluate_every} steps they"
            f" take {share / (1 + share):.1%} of the time",
            "set 5 batches: they show as much",
        )


def _stall_s(request: LaunchRequest, save_s: float, every_s: float) -> float:
    """Return how long training stops for a save. A background save stops training for its copy, and for a late save."""
    config = request.recipe.embedded
    if config is None or not config.checkpoint.background:
        return save_s
    return max(COPY_SHARE * save_s, save_s - every_s)


def space(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.free_space and (size := _size(request, facts.saved)):
        yield from _check_room(request, facts, value=size, free=facts.free_space.free, show=format_size)


def inodes(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    files = facts.saved.files if facts.saved else _files(request)
    if facts.free_space and facts.free_space.inodes_free is not None and files:
        yield from _check_room(request, facts, value=files, free=facts.free_space.inodes_free, show=_show_files)


def _show_files(count: float) -> str:
    return f"{count:,.0f} inodes"


def _check_room(
    request: LaunchRequest, facts: Facts, *, value: float, free: float, show: Callable[[float], str]
) -> Iterator[Problem]:
    assert facts.free_space is not None  # checked by the callers
    planned = _planned_checkpoints(request, facts.saved)
    least, fit = 1 if facts.saved else 2, int(free // value)
    room = f"{facts.free_space.filesystem} has {show(free)} left, and a checkpoint takes {show(value)}"
    if fit < least:
        # Of another trainer the size is an estimate, and its optimizer or its format may be smaller.
        problem = error if facts.saved or request.recipe.is_embedded else warning
        yield problem(f"{room}: {fit} of at least {least} fit", "free space, or save elsewhere")
    elif planned is not None and fit < planned:
        yield warning(
            f"{room}: {fit} fit, but {planned} are to be kept",
            "free space, keep fewer (keep_last, keep_every), or opsctl checkpoint offload",
        )


def _planned_checkpoints(request: LaunchRequest, saved: SavedCheckpoint | None) -> int | None:
    """Return how many checkpoints are still to be written and kept, with the unfinished one; None if unknown."""
    recipe = request.recipe
    if not recipe.steps or not recipe.save_every:
        return None
    left = max(0, recipe.steps - (saved.step if saved else 0))
    if not recipe.keep_last:
        return -(-left // recipe.save_every)
    rolling = max(2, recipe.keep_last) + 1 - (saved.count if saved else 0)
    return max(1, rolling) + (left // recipe.keep_every if recipe.keep_every else 0)


def _size(request: LaunchRequest, saved: SavedCheckpoint | None) -> float:
    if saved and saved.size:
        return saved.size
    if request.recipe.embedded:
        return footprint.checkpoint_bytes(request.recipe.embedded)
    return calc.size_bytes(request.recipe.parameters() or 0)


def _files(request: LaunchRequest) -> int:
    """Return the files of a DeepSpeed checkpoint: one for each layer and tensor rank, and two for each rank."""
    recipe, world = request.recipe, request.world
    if not recipe.layers or not recipe.save_every:
        return 0
    return (recipe.layers + 3) * recipe.tensor + 2 * world + recipe.model_ranks + 3


def resume(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Apply the rules of the embedded trainer. The checkpoints of other trainers are not known."""
    saved, config = facts.saved, request.recipe.embedded
    if saved is None or config is None:
        return
    if saved.kind == manifest.WEIGHTS:
        yield error(
            f"the checkpoint of step {saved.step} holds weights alone, without optimizer state",
            "use a checkpoint that training saved",
        )
        return
    stretches = config.accept and config.model.family != "gpt2"
    expected = {key: getattr(config.model, key) for key in MODEL_FIELDS if not (stretches and key == "sequence")}
    stored = {**saved.topology, "precision": saved.precision, **saved.model}
    if saved.kind == manifest.NATIVE:
        parallel, world = config.parallel, request.spec.nodes * request.spec.processes_per_node
        expected |= {
            "pipeline": parallel.pipeline,
            "tensor": parallel.tensor,
            "data": request.recipe.replicas(world),
            "zero_stage": parallel.zero_stage,
            "balance": parallel.division,
            "precision": saved.precision if config.precision == "auto" else config.precision,
        }
    differences = [
        f"{key} is {stored.get(key)} in the checkpoint and {value} here"
        for key, value in expected.items()
        if stored.get(key) != value
    ]
    if differences:
        yield error(
            f"the checkpoint of step {saved.step} belongs to another run: {'; '.join(differences)}",
            "use the same topology, run opsctl checkpoint reshape, or choose another name",
        )


def finished(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    saved, steps = facts.saved, request.recipe.steps
    if saved and steps and saved.step >= steps:
        yield warning(
            f"the train is at step {saved.step} of {steps}: its tasks would start and exit",
            "set more steps, unless the train is complete",
        )
