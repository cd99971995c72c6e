"""The layout of model and batches over the ranks: which numbers must divide which, and the GPU memory needed."""

from collections.abc import Iterator

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.accelerators import accelerator
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, error_if, note, warning
from opsctl.preflight.recipe_memory import memory_model
from opsctl.preflight.table_checks import TableCheck
from opsctl.trainer.rank_layout import check_layout

TOLERANCE = 0.084
"""Nine of ten of the prequel's measurements are this close to the estimate (docs/explanation/planning-model.md)."""


def _divides(request: LaunchRequest) -> bool:
    return request.world % request.recipe.model_ranks == 0


def ramp(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    recipe = request.recipe
    if recipe.rampup is None or recipe.global_batch is None or not _divides(request):
        return
    start, increment, _samples = recipe.rampup
    name = recipe.name("rampup")
    yield from TableCheck("ramp")(request, facts)
    if start > recipe.global_batch or (recipe.global_batch - start) % max(1, increment):
        yield request.refuse("ramp.never_full", name=name, start=start, batch=recipe.global_batch, increment=increment)
        return
    unit, formula = _unit(request)
    sizes = recipe.sizes()
    wrong = [size for size in sizes if size % unit]
    if wrong and not recipe.global_batch % unit and not recipe.any_batch:
        yield request.refuse(
            "ramp.no_multiple",
            name=name,
            wrong=len(wrong),
            sizes=len(sizes),
            first=wrong[0],
            formula=formula,
            unit=unit,
        )


def _unit(request: LaunchRequest) -> tuple[int, str]:
    """Return the number of which every batch must be a multiple, and its formula in words."""
    micro, replicas = request.recipe.micro_batch or 1, request.recipe.replicas(request.world)
    return micro * replicas, f"micro batch {micro} x {replicas} replicas = {micro * replicas}"


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Judge the GPU memory that the model needs."""
    fullest = _find_fullest_stage(request) if facts.gpu else None
    if fullest is None:
        return
    stage, gib = fullest
    available = accelerator(facts.gpu).memory_gb
    needs: dict[str, Fact] = {"stage": stage, "gib": gib, "gpu": facts.gpu, "available": available}
    if request.recipe.is_embedded:
        if gib > available * (1 - TOLERANCE):
            yield error_if(gib > available * (1 + TOLERANCE), "memory.too_small", **needs)
    elif gib > available:  # an estimate, whose error is large, of a trainer that may do otherwise: never an error
        problem = warning if gpu_memory.is_too_large(gib, available) else note
        yield problem("memory.too_small_by_estimate", **needs)


def _find_fullest_stage(request: LaunchRequest) -> tuple[int, float] | None:
    """Return the stage that needs most memory, and its GiB; None if the layout is impossible or unknown."""
    recipe = request.recipe
    world, shape = request.world, recipe.shape()
    if recipe.embedded and check_layout(recipe.embedded, world):
        return None
    if shape is None or recipe.global_batch is None or recipe.pipeline > shape.layers or world % recipe.model_ranks:
        return None
    try:
        stage_memory = memory_model(recipe)(shape, recipe.topology(world), batch=recipe.global_batch)
    except InputError:  # such as --zero-stage 4
        return None
    return stage_memory.stage, stage_memory.gib
