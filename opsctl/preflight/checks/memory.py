"""Does the model fit into a GPU?"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.calc import gpu_memory as calc
from opsctl.calc.accelerators import accelerator
from opsctl.errors import InputError
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.trainer import footprint
from opsctl.trainer.rank_layout import check_layout, layout

WITHIN = 0.084
"""Nine of ten measurements are this close to the computed memory (docs/explanation/planning-model.md)."""


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if not facts.gpu or (fullest := _fullest(request)) is None:
        return
    stage, gib = fullest
    there = accelerator(facts.gpu).memory_gb
    if gib > there * (1 - WITHIN):
        say = error if gib > there * (1 + WITHIN) else warning
        yield say(
            f"stage {stage} needs {gib:.0f} GiB of a GPU, and {facts.gpu} has {there:g}",
            "more pipeline stages or tensor ranks, a smaller micro batch, recomputation, ZeRO: opsctl plan memory",
        )


def _fullest(request: LaunchRequest) -> tuple[int, float] | None:
    """The stage that needs most, and GiB. None where the layout is impossible, or too little is said of it."""
    recipe, spec = request.recipe, request.spec
    world, shape = spec.nodes * spec.processes_per_node, recipe.shape()
    if recipe.embedded:
        if check_layout(recipe.embedded, world):
            return None
        most = max(
            footprint.stages(recipe.embedded, layout(recipe.embedded, world)),
            key=lambda stage_footprint: stage_footprint.total,
        )
        return most.stage, most.total / footprint.GIB
    if shape is None or recipe.global_batch is None or recipe.pipeline > shape.layers or world % recipe.model_ranks:
        return None
    try:
        stage_memory = calc.fullest(shape, recipe.topology(world), batch=recipe.global_batch)
    except InputError:  # such as --zero-stage 4
        return None
    return stage_memory.stage, stage_memory.gib
