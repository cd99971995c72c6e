"""The GPU memory that a recipe needs: opsctl's trainer by its own formulas, any other by the planner's.

The trainer's formulas count what this trainer keeps, which tests compare with what it allocates. The planner's are
fitted to published measurements of many trainers.
"""

from dataclasses import asdict
from functools import partial

from opsctl.calc import gpu_memory
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.gpu_memory import MemoryModel, StageMemory
from opsctl.calc.parallel_layout import Topology
from opsctl.preflight.recipe import Recipe
from opsctl.trainer import footprint
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import check_layout, layout


def memory_model(recipe: Recipe) -> MemoryModel:
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
    return sizes == (1, 1, 1) and topology.zero < 2 and topology.precision in ("bf16", "fp32")


def _lay_out(config: TrainerConfig, shape: ModelShape, topology: Topology, batch: int) -> TrainerConfig:
    parallel: dict[str, object] = {"tensor": topology.tp, "pipeline": topology.pp, "zero_stage": topology.zero}
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
