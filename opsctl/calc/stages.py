"""How a model and its batches are laid out over GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.calc.accelerators import Accelerator
from opsctl.calc.checks import not_positive, refuse
from opsctl.calc.model import Shape
from opsctl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What there is to run on."""

    nodes: int
    gpus_per_node: int
    gpu: Accelerator
    node_gb_s: float = 50.0
    """What one node's network takes, one direction: 50 is four links of 100 Gbit/s."""
    host_tuned: bool = True
    """PCIe and NUMA set up well; the prequel's were not before 2022-02-25, which cost it up to 5 %."""

    def __post_init__(self) -> None:
        refuse("cluster", not_positive(nodes=self.nodes, gpus_per_node=self.gpus_per_node, network_gb_s=self.node_gb_s))

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Tensor, pipeline and data parallel sizes, and what a GPU takes at once."""

    tp: int
    pp: int
    dp: int
    micro_batch: int = 1
    zero: int = 1
    precision: str = "bf16"
    embedding_slots: bool = False
    """The embedding and the output count as a layer each where layers are shared out over the stages."""
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
        """How many a pipeline takes in a step."""
        return max(1, batch // (self.dp * self.micro_batch))

    def bubble(self, batch: int) -> float:
        """Share of a step that a stage idles: (p − 1)/(m + p − 1) (Narayanan et al. 2021, section 2.2)."""
        return (self.pp - 1) / (self.micro_batches(batch) + self.pp - 1)


def layers_of_stages(shape: Shape, topology: Topology) -> list[int]:
    """Transformer layers on each stage: as many as the fullest needs, in order; what is left goes on the last.

    So 78 layers on 12 stages are eleven times 7 and once 1 (prequel of tr11, "Re-do").
    """
    slots = shape.layers + 2 * topology.embedding_slots
    each = -(-slots // topology.pp)
    counts = [max(0, min(each, slots - each * stage)) for stage in range(topology.pp)]
    if topology.embedding_slots:
        counts[0] -= 1
        last = max(stage for stage, count in enumerate(counts) if count)
        counts[last] -= 1
    return counts


def ramp_sizes(start: int, increment: int, batch: int) -> Sequence[int]:
    """The global batch at every step of the ramp (Megatron's --rampup-batch-size start increment samples)."""
    refuse("ramp", not_positive(ramp_start=start, ramp_increment=increment))
    if start > batch or (batch - start) % increment:
        raise InputError(f"ramp: {start} does not reach {batch} in steps of {increment}")
    return range(start, batch + 1, increment)
