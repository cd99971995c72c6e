"""How long a step takes: what it has to do, times how much longer that took in the prequel's measurements.

A step is (m − 1) times the slowest stage and once all stages, m being the micro batches, and then the all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.calc.gpt_size import ModelShape, block_parameters, embedding_parameters
from opsctl.calc.parallel_layout import Cluster, Topology, layers_of_stages

COEFFICIENTS: dict[str, float] = {
    "compute": 1.141,
    "misaligned": 0.5619,
    "launch": 3.946,
    "tensor traffic": 4.586,
    "softmax": 27.76,
    "all-reduce": 3.541,
    "gradients": 13.05,
    "fp32 gradients": 2.615,
    "host": 0.08597,
}
"""How many times its ideal time each part takes; `launch` is in milliseconds for a layer and a micro batch.

From the odd-numbered tables of the prequel (tests/corpus/plan), by opsctl.calc.least_squares.
docs/explanation/planning-model.md has the accuracy."""


def parts(shape: ModelShape, topology: Topology, cluster: Cluster, *, batch: int) -> dict[str, float]:
    """The ideal time of each part of a step in seconds, in the order of COEFFICIENTS."""
    layers = layers_of_stages(shape, topology)
    times = topology.micro_batches(batch)
    passes = _through(layers, times)
    computing = _through(_in_layers(shape, topology, layers), times) * layer_s(shape, topology, cluster)
    tokens = topology.micro_batch * shape.sequence
    held = (max(layers) * block_parameters(shape) + embedding_parameters(shape)) / topology.tp
    memory = cluster.gpu.memory_tb_s * 1e12
    accumulating = times * held * 2 / memory
    reducing = held * 2 * 2 * (topology.dp - 1) / topology.dp
    return {
        "compute": computing,
        "misaligned": computing * (shape.head_size % 8 != 0),
        "launch": passes / 1000,
        "tensor traffic": passes * tokens * _all_reduce_bytes(shape, topology) / _link(topology, cluster),
        "softmax": passes * tokens * shape.heads / topology.tp * shape.sequence * 2 / memory,
        "all-reduce": reducing / (cluster.node_gb_s * 1e9 / cluster.gpus_per_node),
        "gradients": accumulating,
        "fp32 gradients": accumulating * (topology.precision == "bf16-optimizer"),
        "host": computing * (not cluster.host_tuned),
    }  # fmt: skip


def predict(
    shape: ModelShape,
    topology: Topology,
    cluster: Cluster,
    *,
    batch: int,
    coefficients: dict[str, float] = COEFFICIENTS,
) -> dict[str, float]:
    """Seconds of each part of a step as it will probably be; their sum is the step."""
    ideal = parts(shape, topology, cluster, batch=batch)
    return {name: coefficients.get(name, 0.0) * seconds for name, seconds in ideal.items()}


def layer_s(shape: ModelShape, topology: Topology, cluster: Cluster) -> float:
    """Forwards and backward of a micro batch through one layer at the peak: 96·b·s·h²·(1 + s/6h), 72 unrecomputed."""
    factor = 96 if topology.recompute else 72
    tokens = topology.micro_batch * shape.sequence
    work = factor * tokens * shape.hidden**2 * (1 + shape.sequence / (6 * shape.hidden))
    return work / (topology.tp * cluster.gpu.tflops * 1e12)


def _in_layers(shape: ModelShape, topology: Topology, layers: Sequence[int]) -> list[float]:
    """Each stage's work in units of one layer: the output layer, 6·b·s·V·h and never recomputed, is on the last."""
    factor = 96 if topology.recompute else 72
    output = 6 * shape.vocabulary / (factor * shape.hidden * (1 + shape.sequence / (6 * shape.hidden)))
    return [*layers[:-1], layers[-1] + output]


def _through(work: Sequence[float], times: int) -> float:
    """A pipeline's time for `times` micro batches: all stages once, then the slowest for each of the others."""
    return (times - 1) * max(work) + sum(work)


def _all_reduce_bytes(shape: ModelShape, topology: Topology) -> float:
    """Per token and layer: two all-reduces of 2h bytes in each pass (Shoeybi et al. 2019, section 3)."""
    passes = 3 if topology.recompute else 2
    return passes * 2 * 2 * shape.hidden * 2 * (topology.tp - 1) / topology.tp


def _link(topology: Topology, cluster: Cluster) -> float:
    """Bytes a second between the GPUs of a tensor-parallel group."""
    inside = topology.tp <= cluster.gpus_per_node
    return 1e9 * (cluster.gpu.link_gb_s if inside else cluster.node_gb_s / cluster.gpus_per_node)
