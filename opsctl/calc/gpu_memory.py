"""The memory needed on a GPU. Sizes in bytes, unless the name says GiB."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.calc.error_bars import MEMORY_LIMITS, ErrorBar
from opsctl.calc.gpt_size import (
    ModelShape,
    common_parameters,
    dense_block_parameters,
    embedding_parameters,
    expert_parameters,
)
from opsctl.calc.layer_work import stored_bytes
from opsctl.calc.parallel_layout import RECOMPUTATIONS, Topology, layers_of_stages
from opsctl.trainer.footprint import StageFootprint

GIB = 2**30
OVERHEAD_RATIO = 0.2
"""Memory in buckets and fragments, over memory requested. Fitted to the prequel, a trainer without overlap."""
FLAT_OVERHEAD_RATIO = 0.03
"""The same of FSDP and of Megatron-Core with overlap, which keep gradients and optimizer in flat buffers."""
RECOMPUTED_BYTES = {"operations": 0.65}
"""Share of a layer's bytes that recomputation frees, if not that of the time it costs: cheap outputs are made again."""
LOGITS_BYTES = {False: {False: 6, True: 16}, True: {False: 4, True: 6}}
"""Bytes of a logit: by whether everything is in 16 bits, then by whether the loss is PyTorch's."""
LIKELY = 0.7
"""A layout that fits with a smaller probability is proposed only without a better one, and reported by preflight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per parameter (book, "Anatomy of Model's Memory Usage")."""

    weights: int
    gradients: int
    optimizer: int
    """Master weights, if any, and Adam's two moments."""
    partition: int
    """ZeRO's fp32 copy of the gradients of its partition."""


PRECISIONS = {name: Precision(**row) for name, row in read_package_table("calc/precisions.toml").items()}
SHARDED_FP32 = PRECISIONS.pop("sharded-fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory(StageFootprint):
    """Memory of one rank of a stage of any trainer."""

    kind: str = "flat"
    """Of the trainer, as to how well its memory is known: a key of MEMORY_LIMITS."""

    @property
    def gib(self) -> float:
        return self.total / GIB

    @property
    def _needed(self) -> NormalDist:
        """Of the logarithm of the memory, in GiB, that a GPU needs."""
        limit = MEMORY_LIMITS[self.kind]
        return NormalDist(math.log(self.gib / limit["at"]), limit["spread"])

    def fit_probability(self, memory_gb: float) -> float:
        """Return the probability that a GPU of `memory_gb` has this memory: the one verdict of plan and preflight."""
        return self._needed.cdf(math.log(memory_gb))

    @property
    def bar(self) -> ErrorBar:
        """Factors on the estimate: of the memories with which it fits with 10 % and with 90 %."""
        low, high = (math.exp(self._needed.inv_cdf(share)) / self.gib for share in (0.1, 0.9))
        return ErrorBar(low=low, high=high)

    def fits(self, memory_gb: float, least: float = 0.5) -> bool:
        return self.fit_probability(memory_gb) >= least


class MemoryModel(Protocol):
    """The memory of a trainer's fullest stage. `fullest` is that of trainers of others."""

    def __call__(self, shape: ModelShape, topology: Topology, /, *, batch: int) -> StageMemory: ...


MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "output", "gathered", "overhead", "context")
"""The fields of StageMemory that add up to its total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParameters:
    """The parameters of one GPU of a stage before ZeRO shards them."""

    common: float
    """Of all tokens; shared by all data and context parallel ranks."""
    routed: float
    """Of routed experts; shared by the ranks that hold the same experts."""


def precision(name: str) -> Precision:
    if name not in PRECISIONS:
        raise InputError(f"precision: {name!r} is not known", hint=f"known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def stages(shape: ModelShape, topology: Topology, *, batch: int) -> list[StageMemory]:
    """Return the memory of every stage, from first to last."""
    layers = layers_of_stages(shape, topology)
    return [_stage(shape, topology, stage, layers[stage], batch) for stage in range(topology.pp)]


def fullest(shape: ModelShape, topology: Topology, *, batch: int) -> StageMemory:
    """Return the fullest stage: the first, with the embedding; the second, perhaps with more layers; or the last."""
    layers = layers_of_stages(shape, topology)
    candidates = sorted({0, min(1, topology.pp - 1), topology.pp - 1})
    memories = [_stage(shape, topology, stage, layers[stage], batch) for stage in candidates]
    return max(memories, key=lambda memory: memory.total)


def _stage(shape: ModelShape, topology: Topology, stage: int, layers: int, batch: int) -> StageMemory:
    count = stage_parameters(shape, topology, stage=stage, layers=layers)
    common, routed = states_bytes(topology), states_bytes(topology, of_experts=True)
    weights, gradients, optimizer = (
        count.common * all_ranks + count.routed * expert_ranks
        for all_ranks, expert_ranks in zip(common, routed, strict=True)
    )
    output = logits_bytes(shape, topology) if stage == topology.pp - 1 else 0.0
    stored = in_flight(topology, stage, batch)
    is_flat = topology.overlap or topology.zero >= 3
    freed = output if is_flat else 0.0
    activations = activation_bytes(shape, topology, layers=layers, in_flight=stored, freed=freed)
    gathered = gathered_bytes(shape, topology)
    if topology.accumulates_whole and topology.zero >= 3 and topology.micro_batches(batch) > 1:
        gathered += 4 * (count.common + count.routed)
    stepping = weights if topology.kernels == "eager" else 0.0  # PyTorch's Adam in a list of tensors, foreach
    activations = max(activations, stepping - output - gathered)
    requested = weights + gradients + optimizer + activations + output + gathered
    return StageMemory(
        stage=stage,
        layers=layers,
        parameters=count.common + count.routed,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        output=output,
        gathered=gathered,
        kind=_kind(topology),
        overhead=requested * (FLAT_OVERHEAD_RATIO if is_flat else OVERHEAD_RATIO),
    )


def _kind(topology: Topology) -> str:
    """Return the trainer's kind, as to how well its memory is known."""
    if topology.kernels == "eager":
        return "eager"
    if topology.zero >= 3:
        return "sharded"
    return "stored" if topology.attention == "unfused" else "flat"


def in_flight(topology: Topology, stage: int, batch: int) -> float:
    """Return the micro batches of which a stage stores all layers.

    p − r in 1F1B. With v chunks, (2(p − r − 1) + (v − 1)p + 1)/v (Megatron-LM, schedules.py; Korthikanti et al. 2022,
    section 4.2.3).
    """
    after = topology.pp - stage - 1
    chunks = topology.chunks
    stored = after + 1.0 if chunks == 1 else (2 * after + (chunks - 1) * topology.pp + 1) / chunks
    return min(float(topology.micro_batches(batch)), stored)


def stage_parameters(shape: ModelShape, topology: Topology, *, stage: int, layers: int) -> StageParameters:
    """Return the parameters of one GPU of a stage. Tied: the last stage has a copy of the embedding."""
    first, last = stage == 0, stage == topology.pp - 1
    expert_share = shape.expert_layers / shape.layers
    common = layers * (1 - expert_share) * dense_block_parameters(shape)
    routed = 0.0
    if shape.experts:
        common += layers * expert_share * common_parameters(shape)
        routed = layers * expert_share * expert_parameters(shape) / (topology.tp * topology.ep)
    tables = first + last if topology.pp > 1 or not shape.tied else 1
    return StageParameters(common=(common + tables * embedding_parameters(shape)) / topology.tp, routed=routed)


def states_bytes(topology: Topology, *, of_experts: bool = False) -> tuple[float, float, float]:
    """Return bytes per parameter of weights, gradients and optimizer (ZeRO: Rajbhandari et al. 2020, section 5).

    Stage 1 splits the optimizer over the replicas, stage 2 also the gradients, stage 3 also the weights, of which FSDP
    keeps the fp32 copy alone (Zhao et al. 2023, section 4.4).
    """
    kind, zero = precision(topology.precision), topology.zero
    if zero >= 3 and kind.optimizer == 12:
        kind = SHARDED_FP32
    ranks = max(1.0, topology.shards / (topology.ep if of_experts else 1))
    weights = kind.weights / (ranks if zero >= 3 else 1)
    gradients = (2 if topology.gradients_16 else kind.gradients) / (ranks if zero >= 2 else 1)
    gradients = 0 if topology.offload and zero >= 2 else gradients  # which ZeRO-Offload keeps on the host
    on_gpu = 0 if topology.offload else kind.optimizer + kind.partition
    optimizer = on_gpu / (ranks if zero >= 1 else 1)
    return weights, gradients, optimizer


def layer_activation_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return one layer's bytes without recomputation: sbh·(10 + 24/t + 5as/(ht)) for a GPT without flash attention.

    Korthikanti et al. 2022, eq. 2; sequence parallelism splits the 10 as well (eq. 4). The mean over layers with and
    without experts.
    """
    share = shape.expert_layers / shape.layers
    per_token = (1 - share) * stored_bytes(shape, topology, with_experts=False).of(topology)
    if share:
        per_token += share * stored_bytes(shape, topology, with_experts=True).of(topology)
    return topology.tokens(shape.sequence) * per_token


def activation_bytes(
    shape: ModelShape, topology: Topology, *, layers: int, in_flight: float, freed: float = 0.0
) -> float:
    """Return all layers' bytes.

    With recomputation, a layer stores its input, 2sbh (same paper, section 5), and one layer works with all its bytes,
    in the place of `freed` bytes of the output layer.
    """
    whole = layer_activation_bytes(shape, topology)
    entry = 2 * topology.tokens(shape.sequence) * shape.hidden / topology.norm_split
    share = RECOMPUTED_BYTES.get(topology.recompute, RECOMPUTATIONS[topology.recompute])
    stored = whole
    if topology.recompute == "selective":
        matrix = stored_bytes(shape, topology, with_experts=False).matrix / topology.tp
        stored -= topology.tokens(shape.sequence) * matrix
    per_layer = (1 - share) * stored + share * entry
    return in_flight * layers * per_layer + (max(0.0, whole - freed) if topology.recompute != "none" else 0.0)


def gathered_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return the bytes of the layers that ZeRO-3 gathers: one in use, one ahead, in 16 bits, and gradients of one.

    Zhao et al. 2023 (PyTorch FSDP), section 3.4. Embedding and output layer are one unit each.
    """
    if topology.zero < 3:
        return 0.0
    block = common_parameters(shape) + expert_parameters(shape) / topology.ep if shape.experts else 0.0
    unit = max(block, dense_block_parameters(shape), embedding_parameters(shape)) / topology.tp
    return unit * (2 * 2 + 2)


def logits_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return the bytes of the logits and of what the loss makes of them, in 16 bits, and in 32 bits if anything is.

    Megatron's loss puts the gradients in their place (tensor_parallel/cross_entropy.py). PyTorch's keeps the logits,
    their copy in 32 bits, its logarithm of the softmax and the gradients of both.
    """
    is_pure, is_plain = topology.precision == "bf16-pure", topology.kernels == "eager" or topology.zero >= 3
    size = LOGITS_BYTES[is_pure][is_plain]
    if topology.fused_loss:
        size = 2 * 2
    return topology.tokens(shape.sequence) * shape.vocabulary / topology.tp * size
