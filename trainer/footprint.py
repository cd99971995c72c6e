"""Estimates of the memory of every rank and of the size of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opsctl.trainer.model_size import block_parameters, model_parameters

if TYPE_CHECKING:
    from opsctl.trainer.config import TrainerConfig
    from opsctl.trainer.model_config import ModelConfig
    from opsctl.trainer.rank_layout import Layout

GIB = 2**30
_OVERHEAD_RATIO = 0.25
"""Memory that the allocator reserves beyond the memory in use: fitted to the BLOOM team's tables of memory."""
CONTEXT_BYTES = 1573 * 2**20
"""CUDA context on an A100 before any allocation (prequel of tr11). On a V100: 1271 MiB."""
CHUNK_ELEMENTS = 1 << 25
"""Logits of which the loss holds fp32 copies at a time: 128 MiB, far more than a kernel's launch costs."""
ATTENTION_ROWS = 512
"""Queries that attend at a time where a matrix is needed: enough for a kernel, few beside a long sequence."""
_STATES = {"bf16": (2, 4, 12), "auto": (2, 4, 12), "fp32": (4, 4, 8)}
"""Bytes per parameter of weights, gradients and optimizer. bf16: the fp32 sum of gradients; the optimizer includes
the fp32 weights. auto: as on a GPU with bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFootprint:
    """Memory of one rank of a stage, in bytes."""

    stage: int
    layers: int
    """Blocks."""
    holds: str = ""
    """Other layers of the stage, as text: embedding, output."""
    parameters: float
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Stored for the backward pass, plus the working memory of one layer."""
    output: float
    """Logits and their gradients, on the last stage only."""
    gathered: float = 0.0
    """Whole layers that ZeRO-3 or FSDP gathers."""
    overhead: float
    context: float = CONTEXT_BYTES

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.output + self.gathered + self.overhead + self.context


def checkpoint_bytes(config: TrainerConfig) -> int:
    """Return the bytes of one checkpoint: weights and the optimizer's state."""
    weights, _, optimizer = _STATES[config.precision]
    return model_parameters(config.model) * (weights + optimizer)


def stages(config: TrainerConfig, cut: Layout) -> list[StageFootprint]:
    """Return the footprints of all stages, first to last."""
    return [_stage(config, cut, number) for number in range(cut.pipeline)]


def _blocks(config: TrainerConfig, number: int) -> int:
    stages, layers = config.parallel.pipeline, config.model.layers
    if config.parallel.blocks:
        return config.parallel.blocks[number]
    ends = (number == 0) + (number == stages - 1)
    return (layers + 2) // stages - ends if config.parallel.balance == "blocks-and-embeddings" else layers // stages


def _stage(config: TrainerConfig, cut: Layout, number: int) -> StageFootprint:
    model, first, last = config.model, number == 0, number == cut.pipeline - 1
    blocks = _blocks(config, number)
    # A tied output shares the embedding's weight: one copy if both are on one stage.
    tables = int(first or last) if model.is_tied else first + last
    parameters = (blocks * block_parameters(model) + tables * model.vocabulary * model.hidden) // cut.tensor
    weights, gradients, optimizer = (float(parameters * size) for size in _STATES[config.precision])
    optimizer /= cut.data  # every data-parallel rank holds its share
    output = _logits(config, cut) if last else 0.0
    activations = _activations(config, cut, number, blocks) + (_alibi(config, cut) if blocks else 0.0)
    return StageFootprint(
        stage=number,
        layers=blocks,
        holds=" + ".join(["embedding"] * first + ["output"] * last),
        parameters=parameters,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        output=output,
        activations=activations,
        overhead=(weights + gradients + optimizer + activations + output) * _OVERHEAD_RATIO,
    )


def _activations(config: TrainerConfig, cut: Layout, number: int, blocks: int) -> float:
    """Return the bytes of activations of a stage.

    Source: Korthikanti et al. 2022. With recomputation a block stores 2sbh, and one block at a time stores all. A stage
    has one micro-batch in flight for itself and for every stage after it. With sequence parallelism a product works
    with one gathered sequence and its gradient.
    """
    model, batch = config.model, config.batch
    tokens = model.sequence * batch.micro_batch * (2 if config.precision == "fp32" else 1)
    held = cut.tensor if config.parallel.sequence_parallel else 1
    sbh, full = tokens * model.hidden / held, tokens * _block_activations(model, cut.tensor, held)
    accumulation = cut.accumulation(micro_batch=batch.micro_batch, global_batch=batch.global_batch)
    under_way = min(cut.pipeline - number, accumulation)
    stored = under_way * blocks * 2 * sbh + full if config.recompute else under_way * blocks * full
    gathered = 4 * tokens * model.hidden if config.parallel.sequence_parallel else 0.0
    return stored + gathered


def _block_activations(model: ModelConfig, tensor: int, held: int) -> float:
    """Return the bytes in bf16 that a block stores per token, without the attention matrix.

    `held`: ranks over which the sequence is cut between the matrices. GPT: h·(10 + 24/t), with sequence parallelism
    h·34/t (Korthikanti et al. 2022, eq. 2, 4 and 5b). Llama, counted in the same way: for each of two norms 8h, its
    input in fp32, the quotient, and the product with the weight; on a tensor rank its part of queries, keys, values and
    mixed values before and after the rotation, and of gate, up, the activated gate and the product.
    """
    if not model.kind.is_gated:
        return model.hidden * (10 / held + 24 / tensor)
    queries, pairs = model.heads * model.width_of_head, model.group_count * model.width_of_head
    norms = 4 if model.kind.norms == "around" else 2
    return 8 * norms * model.hidden / held + 2 * (3 * queries + 3 * pairs + 4 * model.width_of_ffn) / tensor


def _logits(config: TrainerConfig, cut: Layout) -> float:
    """Return the bytes of the logits and their gradients, in the model's precision, and of two chunks in fp32."""
    model = config.model
    logits = model.sequence * config.batch.micro_batch * model.vocabulary / cut.tensor
    width = 8 if config.precision == "fp32" else 4
    return logits * width + min(logits, CHUNK_ELEMENTS) * 8


def _alibi(config: TrainerConfig, cut: Layout) -> float:
    """Return the bytes of ALiBi's bias, which a rank keeps once for all its blocks: [heads, rows, sequence]."""
    model, width = config.model, 4 if config.precision == "fp32" else 2
    rows = min(ATTENTION_ROWS, model.sequence) * (model.kind.positions == "alibi")
    return model.heads / cut.tensor * rows * model.sequence * width
