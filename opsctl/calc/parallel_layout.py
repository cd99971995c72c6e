"""The layout of a model and its batches over GPUs."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsctl.base.errors import InputError
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
    node_gb_s: float | None = None
    """Network bandwidth of a node in one direction; None: of the maker's reference cluster."""

    def __post_init__(self) -> None:
        network = self.network_gb_s
        refuse("cluster", not_a_cluster(nodes=self.nodes, gpus_per_node=self.gpus_per_node, network=network))

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def network_gb_s(self) -> float:
        """Network bandwidth of a node in one direction, stated or assumed."""
        return self.gpu.network_gb_s * self.gpus_per_node if self.node_gb_s is None else self.node_gb_s

    @property
    def domain(self) -> int:
        """GPUs joined by fast links: a rack with NVLink, or a node."""
        return max(self.gpu.domain, 1) if self.gpu.domain > 8 else min(self.gpu.domain, self.gpus_per_node)


def not_a_cluster(*, nodes: int, gpus_per_node: int, network: float) -> Iterator[str]:
    yield from not_positive(nodes=nodes, gpus_per_node=gpus_per_node, network=network)
    if gpus_per_node > MAX_GPUS_PER_NODE:
        yield f"gpus per node is {gpus_per_node}, at most {MAX_GPUS_PER_NODE} are known of"


RECOMPUTATIONS = {"none": 0.0, "selective": 0.0, "alternate": 0.5, "operations": 0.5, "full": 1.0}
"""Share of the layers' forward passes that run again.

selective: the attention matrix alone (Korthikanti et al. 2022, section 5). alternate: every second layer. operations:
every second matrix product and all cheap operations, as torchtitan's "selective". full: every layer.
"""
ATTENTIONS = ("flash", "unfused")
KERNELS = ("fused", "eager")
SCHEDULES = {"1f1b": 1.0, "zero-bubble": 1 / 3}
"""Share of the bubble of 1F1B. zero-bubble: ZB-H1 (Qi et al. 2023, table 2). Interleaving divides it further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Parallel sizes, micro batch, and the options that decide memory and speed."""

    tp: int
    pp: int
    dp: int
    """Replicas of the data, sharded or not: GPUs / (tp x pp x cp)."""
    cp: int = 1
    """Ranks that share a sequence."""
    ep: int = 1
    """Ranks of dp x cp that share the experts of a layer."""
    chunks: int = 1
    """Model chunks of a pipeline rank: interleaving (Narayanan et al. 2021, section 2.2)."""
    schedule: str = "1f1b"
    micro_batch: int = 1
    zero: int = 1
    """ZeRO stage; 3 is FSDP as well."""
    shard: int | None = None
    """Replicas that share one copy of the states (HSDP, ZeRO groups); None: all."""
    precision: str = "bf16"
    embedding_slots: bool = False
    """Count the embedding and the output as one layer each when layers are assigned to stages."""
    recompute: str = "none"
    attention: str = "flash"
    """unfused stores the attention matrix."""
    kernels: str = "fused"
    """eager: norms, rotations and activations are single PyTorch operations, without torch.compile or fused kernels."""
    offload: bool = False
    """The optimizer's states lie in the host's memory."""
    overlap: bool = True
    """Communication runs behind computation: FSDP, Megatron-Core's --overlap-grad-reduce and --overlap-param-gather."""
    accumulates_whole: bool = False
    """ZeRO-3 keeps whole gradients in 32 bits between micro batches: FSDP with `no_sync`, as accelerate uses it."""
    gradients_16: bool = False
    """Gradients are kept and reduced in 16 bits: Megatron's --grad-reduce-in-bf16."""
    fused_loss: bool = False
    """The loss holds logits in 16 bits only: compiled, in chunks, or fused with the output layer."""
    sequence_parallel: bool = True
    """Split norms and dropout over the tensor parallel ranks (Korthikanti et al. 2022, section 4.2)."""

    def __post_init__(self) -> None:
        sizes = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "cp": self.cp, "ep": self.ep, "chunks": self.chunks}
        refuse(
            "topology",
            [
                *not_positive(**sizes, micro_batch=self.micro_batch, shard=self.shards),
                *_not_among("zero", self.zero, (0, 1, 2, 3)),
                *_not_among("recompute", self.recompute, tuple(RECOMPUTATIONS)),
                *_not_among("attention", self.attention, ATTENTIONS),
                *_not_among("kernels", self.kernels, KERNELS),
                *_not_among("schedule", self.schedule, tuple(SCHEDULES)),
            ],
        )

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the sharded states; context parallel ranks count as replicas here."""
        return self.dp * self.cp if self.shard is None else self.shard

    @property
    def norm_split(self) -> int:
        """Ranks that share norms, dropout and the inputs of layers."""
        return self.tp if self.sequence_parallel else 1

    def micro_batches(self, batch: int) -> int:
        """Return the micro batches of a pipeline in a step."""
        return max(1, batch // (self.dp * self.micro_batch))

    def tokens(self, sequence: int) -> float:
        """Return the tokens of a micro batch on one GPU, before tensor parallelism."""
        return self.micro_batch * sequence / self.cp

    def bubble(self, batch: int) -> float:
        """Return the idle share of a stage in a step: b/(m + b), b = (p − 1)/v (Narayanan et al. 2021, section 2.2)."""
        idle = (self.pp - 1) / self.chunks * SCHEDULES[self.schedule]
        return idle / (self.micro_batches(batch) + idle)


def _not_among(name: str, value: object, known: Sequence[object]) -> Iterator[str]:
    if value not in known:
        yield f"{name} is {value}, needs to be {', '.join(map(str, known[:-1]))} or {known[-1]}"


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


def ramp_sizes(text: str, batch: int) -> range:
    """Return the global batch at every step of a ramp, START:INCREMENT (as Megatron's --rampup-batch-size)."""
    match = re.fullmatch(r"([1-9]\d{0,14}):([1-9]\d{0,14})", text, re.ASCII)
    sizes = range(int(match[1]), batch + 1, int(match[2])) if match else range(0)
    if not 0 < len(sizes) <= MAX_RAMP_SIZES or sizes[-1] != batch:
        hint = f"START:INCREMENT, such as 192:16; it reaches --batch in at most {MAX_RAMP_SIZES} steps"
        raise InputError(f"--ramp {text!r} does not lead to a batch of {batch}", hint=hint)
    return sizes


def round_batch(samples: float, gpus: int) -> int:
    """Return the nearest batch that as many GPUs as possible share evenly, within a tenth of `samples`."""
    shares = [share for share in range(1, gpus + 1) if gpus % share == 0]
    batches = [max(1, round(samples / share)) * share for share in shares]
    return max(
        (batch for batch in batches if abs(batch - samples) <= 0.1 * samples),
        default=max(1, round(samples)),
        key=lambda batch: math.gcd(batch, gpus),
    )
