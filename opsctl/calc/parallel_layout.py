"""The layout of a model and its batches over GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsctl.calc.accelerators import Accelerator
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape

MAX_RAMP_SIZES = 10_000
"""Every size of a ramp is tried with every topology. The documents' ramps have about 120 sizes."""
MAX_GPUS_PER_NODE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes and GPUs to run on."""

    nodes: int
    gpus_per_node: int
    gpu: Accelerator
    node_gb_s: float = 50.0
    """Network bandwidth of a node in one direction. 50 is four links of 100 Gbit/s."""
    host_tuned: bool = True
    """PCIe and NUMA are tuned. The prequel's hosts were not before 2022-02-25, which cost up to 5 %."""

    def __post_init__(self) -> None:
        refuse("cluster", not_a_cluster(nodes=self.nodes, gpus_per_node=self.gpus_per_node, network=self.node_gb_s))

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def not_a_cluster(*, nodes: int, gpus_per_node: int, network: float) -> Iterator[str]:
    """Yield the problems of a cluster."""
    yield from not_positive(nodes=nodes, gpus_per_node=gpus_per_node, network=network)
    if gpus_per_node > MAX_GPUS_PER_NODE:
        yield f"gpus per node is {gpus_per_node}, at most {MAX_GPUS_PER_NODE} are known of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Tensor, pipeline and data parallel sizes, micro batch, and memory options."""

    tp: int
    pp: int
    dp: int
    micro_batch: int = 1
    zero: int = 1
    precision: str = "bf16"
    embedding_slots: bool = False
    """Count the embedding and the output as one layer each when layers are assigned to stages."""
    recompute: bool = True

    def __post_init__(self) -> None:
        problems = list(not_positive(tp=self.tp, pp=self.pp, dp=self.dp, micro_batch=self.micro_batch))
        if self.zero not in (0, 1, 2, 3):
            problems.append(f"zero is {self.zero}, needs to be 0, 1, 2 or 3")
        refuse("topology", problems)

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    def micro_batches(self, batch: int) -> int:
        """Return the micro batches of a pipeline in a step."""
        return max(1, batch // (self.dp * self.micro_batch))

    def bubble(self, batch: int) -> float:
        """Return the idle share of a stage in a step: (p − 1)/(m + p − 1) (Narayanan et al. 2021, section 2.2)."""
        return (self.pp - 1) / (self.micro_batches(batch) + self.pp - 1)


def layers_of_stages(shape: ModelShape, topology: Topology) -> list[int]:
    """Return the transformer layers of every stage: all stages are filled in order, and the last gets the rest.

    Example: 78 layers on 12 stages are eleven times 7 and once 1 (prequel of tr11, "Re-do").
    """
    slots = shape.layers + 2 * topology.embedding_slots
    number = -(-slots // topology.pp)
    counts = [max(0, min(number, slots - number * stage)) for stage in range(topology.pp)]
    if topology.embedding_slots:
        counts[0] -= 1
        last = max(stage for stage, count in enumerate(counts) if count)
        counts[last] -= 1
    return counts


def ramp_sizes(start: int, increment: int, batch: int) -> Sequence[int]:
    """Return the global batch at every step of the ramp (Megatron's --rampup-batch-size start increment samples)."""
    refuse("ramp", not_a_ramp(start, increment, batch))
    return range(start, batch + 1, increment)


def not_a_ramp(start: int, increment: int, batch: int) -> Iterator[str]:
    """Yield the problems of a ramp from `start` to `batch`."""
    problems = list(not_positive(ramp_start=start, ramp_increment=increment))
    yield from problems
    if problems or batch < 1:
        return
    if start > batch or (batch - start) % increment:
        yield f"ramp: {start} does not reach {batch} in steps of {increment}"
    elif (count := (batch - start) // increment + 1) > MAX_RAMP_SIZES:
        yield f"ramp: {count} sizes from {start} to {batch}, at most {MAX_RAMP_SIZES} are tried"
