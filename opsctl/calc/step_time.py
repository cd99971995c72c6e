"""The time of a step: the ideal time of its parts, times factors fitted to the prequel's measurements.

A step of m micro batches is (m − 1) times the slowest stage, once all stages, and then the all-reduce.
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
"""Real time over ideal time of every part. `launch` is in milliseconds per layer and micro batch.

Fitted by opsctl.calc.least_squares to the odd-numbered tables of the prequel (tests/corpus/plan).
docs/explanation/planning-model.md has the errors."""


def parts(shape: ModelShape, topology: Topology, cluster: Cluster, *, batch: int) -> dict[str, float]:
    """Return the ideal time of every part of a step, in seconds, in the order of COEFFICIENTS."""
    layers = layers_of_stages(shape, topology)
    times = topology.micro_batches(batch)
    passes = _through(layers, times)
    computing = _through(_in_layers(shape, topology, layers), times) * layer_s(shape, topology, cluster)
    tokens = topology.micro_batch * shape.sequence
    parameters = (max(layers) * block_parameters(shape) + embedding_parameters(shape)) / topology.tp
    memory = cluster.gpu.memory_tb_s * 1e12
    accumulating = times * parameters * 2 / memory
    reducing = parameters * 2 * 2 * (topology.dp - 1) / topology.dp
    return {
        "compute": computing,
        "misaligned": computing * (shape.head_size % 8 != 0),
        "launch": passes / 1000,
        "tensor traffic": passes * tokens * _all_reduce_bytes(shape, topology) / _link_bytes_s(topology, cluster),
        "softmax": passes * tokens * shape.heads / topology.tp * shape.sequence * 2 / memory,
        "all-reduce": reducing / (cluster.node_gb_s * 1e9 / cluster.gpus_per_node),
        "gradients": accumulating,
        "fp32 gradients": accumulating * (topology.precision == "bf16-optimizer"),
        "host": computing * (not cluster.host_tuned),
    }


def predict(
    shape: ModelShape,
    topology: Topology,
    cluster: Cluster,
    *,
    batch: int,
    coefficients: dict[str, float] = COEFFICIENTS,
) -> dict[str, float]:
    """Return the likely seconds of every part. Their sum is the time of the step."""
    ideal = parts(shape, topology, cluster, batch=batch)
    return {name: coefficients.get(name, 0.0) * seconds for name, seconds in ideal.items()}


def layer_s(shape: ModelShape, topology: Topology, cluster: Cluster) -> float:
    """Return the seconds of a micro batch in one layer at peak: 96·b·s·h²·(1 + s/6h), 72 unrecomputed."""
    factor = 96 if topology.recompute else 72
    tokens = topology.micro_batch * shape.sequence
    work = factor * tokens * shape.hidden**2 * (1 + shape.sequence / (6 * shape.hidden))
    return work / (topology.tp * cluster.gpu.tflops * 1e12)


def _in_layers(shape: ModelShape, topology: Topology, layers: Sequence[int]) -> list[float]:
    """Return every stage's work in layers. The last stage has the output layer: 6·b·s·V·h, never recomputed."""
    factor = 96 if topology.recompute else 72
    output = 6 * shape.vocabulary / (factor * shape.hidden * (1 + shape.sequence / (6 * shape.hidden)))
    return [*layers[:-1], layers[-1] + output]


def _through(work: Sequence[float], times: int) -> float:
    """Return a pipeline's time for `times` micro batches: all stages once, and the slowest for the other batches."""
    return (times - 1) * max(work) + sum(work)


def _all_reduce_bytes(shape: ModelShape, topology: Topology) -> float:
    """Return the bytes per token and layer: two all-reduces of 2h bytes per pass (Shoeybi et al. 2019, sec. 3)."""
    passes = 3 if topology.recompute else 2
    return passes * 2 * 2 * shape.hidden * 2 * (topology.tp - 1) / topology.tp


def _link_bytes_s(topology: Topology, cluster: Cluster) -> float:
    """Return the bytes per second between the GPUs of a tensor-parallel group."""
    is_inside_node = topology.tp <= cluster.gpus_per_node
    return 1e9 * (cluster.gpu.link_gb_s if is_inside_node else cluster.node_gb_s / cluster.gpus_per_node)
