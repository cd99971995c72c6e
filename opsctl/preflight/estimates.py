"""What a train needs: the time of a step and of a save, measured in the last attempt or predicted, and GPU memory."""

from dataclasses import asdict, dataclass
from functools import partial

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory, step_time
from opsctl.calc.accelerators import ACCELERATORS, accelerator
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.gpu_memory import MemoryModel, StageMemory
from opsctl.calc.parallel_layout import Cluster, Topology
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest
from opsctl.preflight.recipe import Recipe
from opsctl.trainer import footprint
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.model_size import assumed_save_s
from opsctl.trainer.rank_layout import check_layout, layout


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
    """Predict a step (docs/explanation/planning-model.md). None for invalid layouts and unknown GPUs."""
    planned = find_topology(request) if facts.gpu else None
    if planned is None:
        return None
    shape, topology, batch = planned
    cluster = Cluster(nodes=request.spec.nodes, gpus_per_node=request.ranks_per_node, gpu=accelerator(facts.gpu))
    return sum(step_time.predict(shape, topology, cluster, batch=batch).values())


def find_topology(request: LaunchRequest) -> tuple[ModelShape, Topology, int] | None:
    """Return the model, its layout and batch; None if the layout is impossible or unknown."""
    recipe, world, shape = request.recipe, request.world, request.recipe.shape()
    if shape is None or not recipe.global_batch or recipe.pipeline > shape.layers or world % recipe.model_ranks:
        return None
    try:
        return shape, recipe.topology(world), recipe.global_batch
    except InputError:  # such as --zero-stage 4
        return None


def _predict_save_s(request: LaunchRequest) -> float | None:
    count = request.recipe.parameters()
    return assumed_save_s(total_parameters=count, ranks=request.world) if count else None


def least_step_s(request: LaunchRequest, facts: Facts) -> float | None:
    """Return the time of a step at the GPUs' peak, 6 operations per parameter and token."""
    recipe, count = request.recipe, request.recipe.parameters()
    if not (count and recipe.global_batch and recipe.sequence and request.has_gpus):
        return None
    gpus = request.spec.nodes * max(request.ranks_per_node, request.gpus_per_node)
    kinds = [accelerator(facts.gpu)] if facts.gpu else list(ACCELERATORS.values())
    peak = max(kind.tflops for kind in kinds) * 1e12 * (2 if recipe.fp8 else 1)
    return 6 * count * recipe.global_batch * recipe.sequence / (gpus * peak)


def memory_model(recipe: Recipe) -> MemoryModel:
    """Return the model of a recipe's GPU memory: opsctl's trainer by its own formulas, any other by the planner's.

    The trainer's formulas count what this trainer keeps, which tests compare with what it allocates. The planner's are
    fitted to published measurements of many trainers.
    """
    return partial(_fullest_of_own, recipe.embedded) if recipe.embedded else gpu_memory.fullest


def _fullest_of_own(config: TrainerConfig, shape: ModelShape, topology: Topology, /, *, batch: int) -> StageMemory:
    """Return the fullest stage. A layout that the trainer refuses is estimated as another trainer's."""
    changed = _lay_out(config, shape, topology, batch)
    if not _can_run(topology) or check_layout(changed, topology.gpus):
        return gpu_memory.fullest(shape, topology, batch=batch)
    stages = footprint.stages(changed, layout(changed, topology.gpus))
    return StageMemory(**asdict(max(stages, key=lambda stage: stage.total)), kind="own")


def _can_run(topology: Topology) -> bool:
    sizes = (topology.cp, topology.ep, topology.chunks)
    return sizes == (1, 1, 1) and topology.zero == 1 and topology.precision in ("bf16", "fp32")


def _lay_out(config: TrainerConfig, shape: ModelShape, topology: Topology, batch: int) -> TrainerConfig:
    parallel: dict[str, object] = {"tensor": topology.tp, "pipeline": topology.pp}
    if topology.tp == 1:
        parallel["sequence_parallel"] = False
    if topology.pp != config.parallel.pipeline:
        slots = topology.embedding_slots
        parallel |= {"blocks": None, "balance": "blocks-and-embeddings" if slots else "blocks"}
    sizes: dict[str, object] = {"micro_batch": topology.micro_batch, "global_batch": batch}
    if batch != config.batch.global_batch:
        sizes["rampup"] = None
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"sequence": shape.sequence}),
            "parallel": config.parallel.model_copy(update=parallel),
            "batch": config.batch.model_copy(update=sizes),
            "recompute": topology.recompute == "full",
            "precision": topology.precision,
        }
    )
