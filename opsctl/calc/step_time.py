"""The time of a step: the work of its parts over the peaks of the hardware, times fitted efficiencies.

A step of m micro batches is m times the slowest stage, the bubble of the pipeline, the communication that computation
does not hide, and the optimizer.
"""

from dataclasses import dataclass, replace
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.gpu_memory import StageParameters, precision, stage_parameters
from opsctl.calc.layer_work import attention_flops, products, stored_bytes
from opsctl.calc.parallel_layout import RECOMPUTATIONS, SCHEDULES, Cluster, Topology, layers_of_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationGroup:
    """Ranks that communicate. Neighbours are `stride` ranks apart."""

    size: int
    stride: int
    cluster: Cluster
    link: float
    """Share of the peak that fast links reach."""
    network: float
    """Share of the peak that the network reaches."""
    hop_us: float
    """Microseconds from one domain to the next."""

    @property
    def neighbours(self) -> int:
        """Ranks of the group in one domain of fast links."""
        return max(1, min(self.size, self.cluster.domain // self.stride))

    @property
    def link_bytes_s(self) -> float:
        return 1e9 * self.cluster.gpu.link_gb_s * self.link

    @property
    def network_bytes_s(self) -> float:
        """Of one GPU."""
        return 1e9 * self.cluster.network_gb_s / self.cluster.gpus_per_node * self.network

    def ring_s(self, total_bytes: float, operations: float = 1) -> float:
        """Return the seconds of reduce-scatters or all-gathers of `total_bytes` in all (Thakur et al. 2005, ring).

        Every rank sends (n − 1)/n of the bytes. Across nodes, the ranks of a domain share one ring and their links to
        the network add up; every operation goes through all domains.
        """
        if self.size == 1:
            return 0.0
        bandwidth = self.link_bytes_s
        if self.size > self.neighbours:
            bandwidth = min(bandwidth, self.network_bytes_s * self.neighbours)
        latency_s = operations * (self.size / self.neighbours - 1) * self.hop_us / 1e6
        return total_bytes * (self.size - 1) / self.size / bandwidth + latency_s

    def exchange_s(self, total_bytes: float) -> float:
        """Return the seconds of an all-to-all in which every rank sends `total_bytes`, its own part included."""
        inside = total_bytes * (self.neighbours - 1) / self.size / self.link_bytes_s
        outside = total_bytes * (self.size - self.neighbours) / self.size / self.network_bytes_s
        return max(inside, outside)

    def send_s(self, total_bytes: float) -> float:
        """Return the seconds of a message to the next rank."""
        is_inside = self.size <= self.neighbours
        return total_bytes / (self.link_bytes_s if is_inside else self.network_bytes_s)


Efficiencies = dict[str, Any]
EFFICIENCIES: Efficiencies = read_package_table("calc/step_time.toml")
"""The fitted figures of step_time.toml."""


HOST_BYTES_S = 12e9
"""Between a GPU and its host, one way: PCIe 3 with 16 lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """All that the time of a step depends on."""

    shape: ModelShape
    topology: Topology
    cluster: Cluster
    batch: int
    fitted: Efficiencies

    @property
    def tokens(self) -> float:
        return self.topology.tokens(self.shape.sequence)

    @property
    def memory_bytes_s(self) -> float:
        return self.cluster.gpu.memory_tb_s * 1e12

    @property
    def number_format(self) -> str:
        return self.topology.precision if self.topology.precision in ("fp8", "fp4") else "bf16"

    def of_generation(self, name: str) -> float:
        return float(self.fitted["generations"][self.cluster.gpu.generation][name])

    def shared(self, name: str) -> float:
        return float(self.fitted["shared"][name])

    def product_s(self, flops: float, number_format: str = "bf16") -> float:
        """Return the seconds of large matrix products."""
        gpu = self.cluster.gpu
        shares = {"bf16": "products", "fp8": "fp8_products", "fp4": "fp4_products"}
        known = number_format if gpu.has(number_format) else "bf16"
        share = self.of_generation(shares[known]) * gpu.sustained
        if self.topology.zero == 3:
            share *= self.of_generation("plain")
        return flops / (gpu.peak_tflops(known) * 1e12 * share)

    def hidden_share(self, name: str) -> float:
        """Return the share of communication that can hide behind computation."""
        return self.shared(name) if self.topology.overlap else 0.0

    def eager(self, name: str) -> float:
        """Return a factor of single PyTorch operations; 1 with fused kernels."""
        return self.shared(name) if self.topology.kernels == "eager" else 1.0

    def data_group(self, size: int, stride: int) -> CommunicationGroup:
        """Return a group of replicas. Trainers without overlap send in small pieces, and copy between them."""
        group = self.group(size, stride)
        serial = 1.0 if self.topology.overlap else self.shared("serial")
        return replace(group, network=group.network * serial, link=group.link * serial)

    def group(self, size: int, stride: int) -> CommunicationGroup:
        return CommunicationGroup(
            size=size,
            stride=stride,
            cluster=self.cluster,
            link=self.shared("link"),
            network=self.of_generation("network"),
            hop_us=self.shared("hop"),
        )


def predict(
    shape: ModelShape,
    topology: Topology,
    cluster: Cluster,
    *,
    batch: int,
    fitted: Efficiencies = EFFICIENCIES,
) -> dict[str, float]:
    """Return the likely seconds of every part. Their sum is the time of the step."""
    step = _Step(shape=shape, topology=topology, cluster=cluster, batch=batch, fitted=fitted)
    layers = layers_of_stages(shape, topology)
    layer = _layer_parts(step)
    busiest = max(layers)
    times = topology.micro_batches(batch)
    parts = {name: times * busiest * seconds for name, seconds in layer.items()}
    parts["output"] = times * _output_s(step) * _output_share(step, layers, sum(layer.values()))
    stage_s = sum(layer.values()) * shape.layers / topology.pp + _output_s(step) / topology.pp
    parts["sends"] = _sends_s(step, times)
    parts["bubble"] = (topology.pp - 1) / topology.chunks * SCHEDULES[topology.schedule] * stage_s
    computing = sum(parts.values())
    count = stage_parameters(shape, topology, stage=0, layers=busiest)
    parts["gradients"] = _exposed_s(step, count, computing, times)
    parts["optimizer"] = _optimizer_s(step, count)
    return parts


def _output_share(step: _Step, layers: list[int], layer_s: float) -> float:
    """Return the share of the output layer that the last stage does not fit into its fewer layers."""
    room = (max(layers) - layers[-1]) * layer_s
    output = _output_s(step)
    return max(0.0, 1 - room / output)


def _layer_parts(step: _Step) -> dict[str, float]:
    """Return the seconds of a micro batch in one layer, forward, backward and recomputed, by part."""
    shape, topology = step.shape, step.topology
    again = RECOMPUTATIONS[topology.recompute]
    attention_again = 1.0 if topology.recompute == "selective" and topology.attention == "unfused" else again
    kernel, softmax = _attention_s(step)
    backward = 2.0 if topology.attention == "unfused" else 2.5  # flash: 5 products for 2 (Dao et al. 2022, appendix B)
    parts = {
        "products": (3 + again) * _products_s(step),
        "attention": (1 + backward + attention_again) * kernel + (2 + attention_again) * softmax,
        "traffic": (3 + again) * _traffic_s(step),
        "tensor": (2 + again) * _tensor_s(step),
        "context": (3 + again) * _context_s(step),
        "experts": (2 + again) * _experts_s(step),
    }
    expert_share = shape.expert_layers / shape.layers
    per_pass = step.shared("sharded_launch" if topology.zero == 3 else "launch")
    per_pass += expert_share * step.shared("expert_launch")
    launching, computing = (3 + again) * per_pass / 1000, sum(parts.values())
    norm = step.shared("launch_norm")
    parts["launch"] = (launching**norm + computing**norm) ** (1 / norm) - computing
    return parts


def _products_s(step: _Step) -> float:
    """Return the seconds of the products of a layer, forward: operations over the peak plus bytes over the memory's."""
    share = step.shape.expert_layers / step.shape.layers
    seconds = 0.0
    for with_experts, weight in ((True, share), (False, 1 - share)):
        for product in products(step.shape, step.topology, with_experts=with_experts) if weight else ():
            computing = step.product_s(product.flops * step.tokens, step.number_format)
            if step.shape.head_size % 8:
                computing *= 1 + step.shared("misaligned")
            seconds += weight * (computing + product.bytes(step.tokens) / step.memory_bytes_s)
    return seconds


def _attention_s(step: _Step) -> tuple[float, float]:
    """Return the seconds of the attention matrix forward: its products, and its traffic if the matrix is stored."""
    flops = attention_flops(step.shape, step.topology) * step.tokens
    peak = step.cluster.gpu.tflops * step.cluster.gpu.sustained * 1e12
    if step.topology.attention == "flash":
        return flops / (peak * step.of_generation("attention")), 0.0
    elements = step.tokens * step.shape.heads / step.topology.tp * step.shape.sequence
    return step.product_s(flops), elements * step.shared("softmax") / step.memory_bytes_s


def _traffic_s(step: _Step) -> float:
    """Return the seconds of norms, activations, dropout and residuals: bytes over the memory's speed."""
    share = step.shape.expert_layers / step.shape.layers
    per_token = 0.0
    for with_experts, weight in ((True, share), (False, 1 - share)):
        if weight:
            stored = stored_bytes(step.shape, step.topology, with_experts=with_experts)
            per_token += weight * (stored.common / step.topology.norm_split + stored.split / step.topology.tp)
    return step.tokens * per_token * step.shared("traffic") * step.eager("eager_traffic") / step.memory_bytes_s


def _tensor_s(step: _Step) -> float:
    """Return the seconds of the two all-reduces of a pass, 2h bytes a token each (Shoeybi et al. 2019, section 3)."""
    group = step.group(step.topology.tp, 1)
    return 4 * group.ring_s(2 * step.tokens * step.shape.hidden) * (1 - step.hidden_share("tensor_overlap"))


def _context_s(step: _Step) -> float:
    """Return the seconds in which keys and values go round the ring (Llama 3, arXiv 2407.21783, section 3.3.2)."""
    group = step.group(step.topology.cp, step.topology.tp)
    sent = 2 * step.tokens * 2 * step.shape.groups * step.shape.head_size / step.topology.tp
    return group.ring_s(sent * step.topology.cp) * (1 - step.hidden_share("data_overlap"))


def _experts_s(step: _Step) -> float:
    """Return the seconds of sending tokens to their experts and back: 2h bytes a token and expert, twice a pass."""
    shape, topology = step.shape, step.topology
    if not shape.experts or topology.ep == 1:
        return 0.0
    group = step.group(topology.ep, topology.tp)
    sent = 2 * step.tokens * shape.hidden * shape.active_experts / topology.norm_split
    return 2 * group.exchange_s(sent) * shape.expert_layers / shape.layers


def _output_s(step: _Step) -> float:
    """Return the seconds of a micro batch in the output layer: three passes and the loss's traffic."""
    shape, topology = step.shape, step.topology
    rows = step.tokens * shape.vocabulary / topology.tp
    products_s = step.product_s(3 * 2 * rows * shape.hidden)
    return products_s + rows * (2 + 4) * step.shared("traffic") / step.memory_bytes_s


def _sends_s(step: _Step, times: int) -> float:
    """Return the seconds of sends between stages: 2h bytes a token, forward and backward, for every chunk.

    Every tensor parallel rank sends its part (Narayanan et al. 2021, section 4.1).
    """
    topology = step.topology
    if topology.pp == 1:
        return 0.0
    group = step.group(topology.pp, topology.tp * topology.cp * topology.dp)
    sent = 2 * step.tokens * step.shape.hidden / topology.tp
    hidden = 0.0 if topology.chunks == 1 else step.hidden_share("data_overlap")
    return 2 * times * topology.chunks * group.send_s(sent) * (1 - hidden)


def _exposed_s(step: _Step, count: StageParameters, computing: float, times: int) -> float:
    """Return the seconds of data parallel communication that computation does not hide.

    ZeRO 0 to 2: once a step, behind one micro batch. ZeRO-3: with every micro batch.
    """
    overlap = step.hidden_share("data_overlap")
    window = computing if step.topology.zero == 3 else computing / times
    sending = _data_s(step, count, times)
    return (1 - overlap) * sending + max(0.0, overlap * sending - window)


def _data_s(step: _Step, count: StageParameters, times: int) -> float:
    """Return the seconds of all data parallel communication of a step.

    A reduce-scatter of the gradients, of 2 bytes in the recipes for fp8, and an all-gather of 2 bytes a parameter;
    ZeRO-3 gathers twice, and all for every micro batch (Rajbhandari et al. 2020, section 7).
    """
    topology = step.topology
    is_short = step.number_format != "bf16" or topology.gradients_16
    gradient_bytes = 2 if is_short else min(4, precision(topology.precision).gradients)
    is_sharded = topology.zero == 3
    sent_bytes = times * (gradient_bytes + 4) if is_sharded else gradient_bytes + 2
    operations = (3 * times if is_sharded else 2) * step.shape.layers / topology.pp
    seconds = 0.0
    for parameters, ep in ((count.common, 1), (count.routed, topology.ep)):
        ranks = topology.dp * topology.cp
        sharing = max(1, min(topology.shards, ranks) // ep) if topology.zero == 3 else max(1, ranks // ep)
        group = step.data_group(sharing, topology.tp * ep)
        seconds += group.ring_s(sent_bytes * parameters, operations if parameters else 0)
        replicas = max(1, ranks // ep) // sharing
        seconds += step.data_group(replicas, topology.tp * ep * sharing).ring_s(
            2 * gradient_bytes * parameters / sharing
        )
    return seconds


def _optimizer_s(step: _Step, count: StageParameters) -> float:
    """Return the seconds of Adam: 16 bytes read and 14 written per parameter of the rank's share.

    Offloaded: gradients go to the host and weights come back (Ren et al. 2021, ZeRO-Offload, section 4).
    """
    topology = step.topology
    common = count.common / (topology.shards if topology.zero else 1)
    routed = count.routed / (max(1.0, topology.shards / topology.ep) if topology.zero else 1)
    if topology.offload:
        return 6 * (common + routed) / HOST_BYTES_S
    return 30 * (common + routed) * step.eager("eager_optimizer") / step.memory_bytes_s
