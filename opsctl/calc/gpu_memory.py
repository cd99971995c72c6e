"""What a GPU has to hold. Sizes in bytes; GiB where it says so."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape, block_parameters, embedding_parameters
from opsctl.calc.parallel_layout import Topology, layers_of_stages
from opsctl.errors import InputError

GIB = 2**30
OVERHEAD = 1.25
"""What the allocator holds over what is asked of it, buckets and fragments: fitted to the prequel's measurements."""
CONTEXT_BYTES = 1573 * 2**20
"""What CUDA takes on an A100 before anything is allocated (prequel of tr11); on a V100 it was 1271 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of each parameter (book, "Anatomy of Model's Memory Usage")."""

    weights: int
    gradients: int
    optimizer: int
    """Master weights where there are any, and Adam's two moments."""
    partition: int
    """ZeRO's own copy of the gradients of its share, in fp32."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(weights=4, gradients=4, optimizer=8, partition=0),
    "fp16": Precision(weights=2, gradients=2, optimizer=12, partition=4),
    "bf16": Precision(weights=2, gradients=4, optimizer=12, partition=0),
    "bf16-optimizer": Precision(weights=2, gradients=6, optimizer=12, partition=0),
}
"""bf16 is the 18 bytes that the documents count with; fp16 keeps 16-bit gradients; bf16-optimizer is DeepSpeed's
BF16_Optimizer as BLOOM ran it, with 16-bit gradients beside those that it accumulates in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What one GPU of a stage holds."""

    stage: int
    layers: int
    parameters: float
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Held for the backward pass, and what one layer works with."""
    output: float
    """Logits and their gradients: on the last stage alone."""
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
    """Every stage, first to last."""
    layers = layers_of_stages(shape, topology)
    in_flight = [min(topology.micro_batches(batch), topology.pp - stage) for stage in range(topology.pp)]
    return [_stage(shape, topology, stage, layers[stage], in_flight[stage]) for stage in range(topology.pp)]


def fullest(shape: ModelShape, topology: Topology, *, batch: int) -> StageMemory:
    """The stage that decides: the first, with the embedding and the most batches in flight, or the last."""
    return max(stages(shape, topology, batch=batch), key=lambda stage: stage.total)


def _stage(shape: ModelShape, topology: Topology, stage: int, layers: int, in_flight: int) -> StageMemory:
    first, last = stage == 0, stage == topology.pp - 1
    count: float = layers * block_parameters(shape)
    if first or last:  # on the last as the output layer, whose weights are tied to it
        count += embedding_parameters(shape)
    count /= topology.tp
    weights, gradients, optimizer = states_bytes(topology)
    activations = activation_bytes(shape, topology, layers=layers, in_flight=in_flight)
    output = logits_bytes(shape, topology) if last else 0.0
    held = count * (weights + gradients + optimizer) + activations + output
    return StageMemory(
        stage=stage, layers=layers, parameters=count, weights=count * weights, gradients=count * gradients,
        optimizer=count * optimizer, activations=activations, output=output, overhead=held * (OVERHEAD - 1),
    )  # fmt: skip


def states_bytes(topology: Topology) -> tuple[float, float, float]:
    """Bytes per parameter of weights, gradients and optimizer (ZeRO: Rajbhandari et al. 2020, section 5).

    Stage 1 shares the optimizer's out over the replicas, stage 2 the gradients too, stage 3 the weights too.
    """
    kind, dp, zero = precision(topology.precision), topology.dp, topology.zero
    share = [1 / dp if zero >= stage else 1.0 for stage in (3, 2, 1)]
    return kind.weights * share[0], kind.gradients * share[1], (kind.optimizer + kind.partition) * share[2]


def layer_activation_bytes(shape: ModelShape, topology: Topology) -> float:
    """One layer without recomputation: sbh·(10 + 24/t + 5as/(ht)) (Korthikanti et al. 2022, eq. 2)."""
    sbh = shape.sequence * topology.micro_batch * shape.hidden
    attention = 5 * shape.heads * shape.sequence / shape.hidden
    return sbh * (10 + (24 + attention) / topology.tp)


def activation_bytes(shape: ModelShape, topology: Topology, *, layers: int, in_flight: int) -> float:
    """With recomputation 2sbh a layer (same paper, section 5) and one layer's in full; without, all in full."""
    one = layer_activation_bytes(shape, topology)
    if not topology.recompute:
        return in_flight * layers * one
    return in_flight * layers * 2 * shape.sequence * topology.micro_batch * shape.hidden + one


def logits_bytes(shape: ModelShape, topology: Topology) -> float:
    """In 16 bits, in 32 for the loss, and the gradients of those."""
    return shape.sequence * topology.micro_batch * shape.vocabulary / topology.tp * (2 + 4 + 4)


def least_gpus(*, billions: float, gpu_gb: float, training: bool = True) -> int:
    """size·18·1.25 / GPU, for inference size·2·1.25 / GPU (book, "Tell how many GPUs do you need in 5 secs")."""
    refuse("memory", not_positive(billions=billions, gpu_gb=gpu_gb))
    return math.ceil(billions * (18 if training else 2) * 1.25 / gpu_gb)
