"""The GPU memory that the model needs."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory as calc
from opsctl.calc.accelerators import accelerator
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.preflight.recipe_memory import memory_model
from opsctl.trainer.rank_layout import check_layout

TOLERANCE = 0.084
"""Nine of ten of the prequel's measurements are this close to the estimate (docs/explanation/planning-model.md)."""


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    fullest = _find_fullest_stage(request) if facts.gpu else None
    if fullest is None:
        return
    stage, gib = fullest
    available = accelerator(facts.gpu).memory_gb
    if request.recipe.is_embedded:
        is_short, verb = gib > available * (1 - TOLERANCE), "needs"
        problem = error if gib > available * (1 + TOLERANCE) else warning
    else:  # an estimate, whose error is large, of a trainer that may do otherwise: never an error
        is_short, verb = gib > available, "needs, by estimate,"
        problem = warning if calc.is_too_large(gib, available) else note
    if is_short:
        yield problem(
            f"stage {stage} {verb} {gib:.0f} GiB of GPU memory, but {facts.gpu} has {available:g}",
            "use more stages or tensor ranks, a smaller micro batch, recomputation or ZeRO: opsctl plan memory",
        )


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
