"""The layout of model and batches over the ranks: which numbers must divide which, and the GPU memory needed."""

from collections.abc import Iterator

from opsctl.base.errors import InputError
from opsctl.calc.accelerators import accelerator
from opsctl.calc.gpu_memory import LIKELY, StageMemory
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, error_if, note, warning
from opsctl.preflight.recipe_memory import memory_model
from opsctl.trainer.rank_layout import check_layout

CERTAIN = 0.95
"""Below this probability it is reported that the model of opsctl's own trainer may not fit."""


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Judge the GPU memory that the model needs."""
    fullest = _find_fullest_stage(request) if facts.gpu else None
    if fullest is None:
        return
    available = accelerator(facts.gpu).memory_gb
    fitting = fullest.fit_probability(available)
    needs: dict[str, Fact] = {"stage": fullest.stage, "gib": fullest.gib, "gpu": facts.gpu, "available": available}
    needs["fitting"] = fitting
    if request.recipe.is_embedded:
        if fitting < CERTAIN:
            yield error_if(fitting < 1 - CERTAIN, "memory.too_small", **needs)
    elif fitting < LIKELY:  # an estimate of a trainer that may do otherwise: never an error
        problem = warning if fitting < 0.5 else note
        yield problem("memory.too_small_by_estimate", **needs)


def _find_fullest_stage(request: LaunchRequest) -> StageMemory | None:
    """Return the stage that needs most memory; None if the layout is impossible or unknown."""
    recipe = request.recipe
    world, shape = request.world, recipe.shape()
    if recipe.embedded and check_layout(recipe.embedded, world):
        return None
    if shape is None or recipe.global_batch is None or recipe.pipeline > shape.layers or world % recipe.model_ranks:
        return None
    try:
        return memory_model(recipe)(shape, recipe.topology(world), batch=recipe.global_batch)
    except InputError:  # such as --zero-stage 4
        return None
