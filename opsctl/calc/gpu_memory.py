"""The memory needed on a GPU. Sizes in bytes, unless the name says GiB."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape, block_parameters, embedding_parameters
from opsctl.calc.parallel_layout import Topology, layers_of_stages
from opsctl.errors import InputError

GIB = 2**30
OVERHEAD_RATIO = 1.25
"""Memory held by the allocator over memory requested: buckets and fragments. Fitted to the prequel's measurements."""
CONTEXT_BYTES = 1573 * 2**20
"""CUDA context on an A100 before any allocation (prequel of tr11). On a V100: 1271 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per parameter (book, "Anatomy of Model's Memory Usage")."""

    weights: int
    gradients: int
    optimizer: int
    """Master weights, if any, and Adam's two moments."""
    partition: int
    """ZeRO's fp32 copy of the gradients of its partition."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weights=4, gradients=4, optimizer=8, partition=0),
    "fp16": Precision(weights=2, gradients=2, optimizer=12, partition=4),
    "bf16": Precision(weights=2, gradients=4, optimizer=12, partition=0),
    "bf16-optimizer": Precision(weights=2, gradients=6, optimizer=12, partition=0),
}
"""bf16: the documents' 18 bytes. fp16: 16-bit gradients. bf16-optimizer: DeepSpeed's BF16_Optimizer in BLOOM's
settings, with 16-bit gradients and accumulated fp32 gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory of one GPU of a stage."""

    stage: int
    layers: int
    parameters: float
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Stored for the backward pass, plus the working memory of one layer."""
    output: float
    """Logits and their gradients, on the last stage only."""
    overhead: float
    context: float = CONTEXT_BYTES

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.output + self.overhead + self.context

    @property
    def gib(self) -> float:
        return self.total / GIB


def precision(name: str) -> Precision:
    if name not in PRECISIONS:
        raise InputError(f"precision: {name!r} is not known", hint=f"known: {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def stages(shape: ModelShape, topology: Topology, *, batch: int) -> list[StageMemory]:
    """Return the memory of every stage, from first to last."""
    layers = layers_of_stages(shape, topology)
    in_flight = [min(topology.micro_batches(batch), topology.pp - stage) for stage in range(topology.pp)]
    return [_stage(shape, topology, stage, layers[stage], in_flight[stage]) for stage in range(topology.pp)]


def fullest(shape: ModelShape, topology: Topology, *, batch: int) -> StageMemory:
    """Return the fullest stage: the first, with the embedding and the most batches in flight, or the last."""
    return max(stages(shape, topology, batch=batch), key=lambda stage: stage.total)


def _stage(shape: ModelShape, topology: Topology, stage: int, layers: int, in_flight: int) -> StageMemory:
    first, last = stage == 0, stage == topology.pp - 1
    count: float = layers * block_parameters(shape)
    if first or last:  # the output layer of the last stage has a copy of the tied weights
        count += embedding_parameters(shape)
    count /= topology.tp
    weights, gradients, optimizer = states_bytes(topology)
    activations = activation_bytes(shape, topology, layers=layers, in_flight=in_flight)
    output = logits_bytes(shape, topology) if last else 0.0
    requested = count * (weights + gradients + optimizer) + activations + output
    return StageMemory(
        stage=stage,
        layers=layers,
        parameters=count,
        weights=count * weights,
        gradients=count * gradients,
        optimizer=count * optimizer,
        activations=activations,
        output=output,
        overhead=requested * (OVERHEAD_RATIO - 1),
    )


def states_bytes(topology: Topology) -> tuple[float, float, float]:
    """Return bytes per parameter of weights, gradients and optimizer (ZeRO: Rajbhandari et al. 2020, section 5).

    Stage 1 splits the optimizer over the replicas, stage 2 also the gradients, stage 3 also the weights.
    """
    kind, dp, zero = precision(topology.precision), topology.dp, topology.zero
    weights = kind.weights / (dp if zero >= 3 else 1)
    gradients = kind.gradients / (dp if zero >= 2 else 1)
    optimizer = (kind.optimizer + kind.partition) / (dp if zero >= 1 else 1)
    return weights, gradients, optimizer


def layer_activation_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return one layer's bytes without recomputation: sbh·(10 + 24/t + 5as/(ht)) (Korthikanti et al. 2022, eq. 2)."""
    sbh = shape.sequence * topology.micro_batch * shape.hidden
    attention = 5 * shape.heads * shape.sequence / shape.hidden
    return sbh * (10 + (24 + attention) / topology.tp)


def activation_bytes(shape: ModelShape, topology: Topology, *, layers: int, in_flight: int) -> float:
    """Return all layers' bytes. With recomputation: 2sbh per layer (same paper, section 5) plus one full layer."""
    full_layer = layer_activation_bytes(shape, topology)
    if not topology.recompute:
        return in_flight * layers * full_layer
    return in_flight * layers * 2 * shape.sequence * topology.micro_batch * shape.hidden + full_layer


def logits_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return the bytes of the logits: in 16 bits, in 32 bits for the loss, and 32-bit gradients."""
    return shape.sequence * topology.micro_batch * shape.vocabulary / topology.tp * (2 + 4 + 4)


def least_gpus(*, billions: float, gpu_gb: float, training: bool = True) -> int:
    """Return the least number of GPUs.

    size·18·1.25 / GPU, for inference size·2·1.25 / GPU (book, "Tell how many GPUs do you need in 5 secs").
    """
    refuse("memory", not_positive(billions=billions, gpu_gb=gpu_gb))
    return math.ceil(billions * (18 if training else 2) * 1.25 / gpu_gb)
