"""The time of a step and of a save: measured in the last attempt, else predicted."""

from dataclasses import dataclass

from opsctl.base.errors import InputError
from opsctl.calc import step_time
from opsctl.calc.accelerators import accelerator
from opsctl.calc.parallel_layout import Cluster
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest
from opsctl.trainer.model_size import assumed_save_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Times in seconds; None means unknown."""

    step_s: float | None
    save_s: float | None

    @property
    def stop_s(self) -> float | None:
        """Twice the time to finish a step and save."""
        if self.step_s is None or self.save_s is None:
            return None
        return 2 * (self.step_s + self.save_s)


def estimate_step(request: LaunchRequest, facts: Facts) -> StepEstimate:
    """Return the times of a step and a save, measured if possible."""
    saved = facts.saved
    return StepEstimate(
        step_s=facts.step_s or (saved.slowest_step_s if saved else 0) or _predict_step_s(request, facts),
        save_s=(saved.save_s if saved else 0) or _predict_save_s(request),
    )


def _predict_step_s(request: LaunchRequest, facts: Facts) -> float | None:
    """Predict a step from the prequel's measurements (docs/explanation/planning-model.md).

    None for invalid layouts and unknown GPUs.
    """
    recipe, shape, spec = request.recipe, request.recipe.shape(), request.spec
    world = request.world
    if (
        not (shape and facts.gpu and recipe.global_batch)
        or recipe.pipeline > shape.layers
        or world % recipe.model_ranks
    ):
        return None
    cluster = Cluster(nodes=spec.nodes, gpus_per_node=request.ranks_per_node, gpu=accelerator(facts.gpu))
    try:
        return sum(step_time.predict(shape, recipe.topology(world), cluster, batch=recipe.global_batch).values())
    except InputError:  # such as --zero-stage 4
        return None


def _predict_save_s(request: LaunchRequest) -> float | None:
    count = request.recipe.parameters()
    return assumed_save_s(total_parameters=count, ranks=request.world) if count else None
