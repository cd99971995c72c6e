"""The plan of a run: layouts, time, cost, energy, checkpoints, failures and spares, each with its error bar."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory, save_interval, spares, step_time
from opsctl.calc.error_bars import TOTAL_BAR, ErrorBar, step_bar
from opsctl.calc.gpt_size import ModelShape, parameters
from opsctl.calc.parallel_layout import RECOMPUTATIONS, Cluster, Topology
from opsctl.calc.save_interval import renewal
from opsctl.calc.throughput import step_tflop
from opsctl.calc.topology_search import MICRO_BATCHES, gives_embedding_slots, least_recomputed

CHUNKS = (1, 2, 4)
MAX_UNEVEN = 1.1
"""Layers that the stages have room for, over layers."""
MAX_EXPERT_RANKS = 64
LONG_SEQUENCE = 16_384
"""Sequences from here on may be split over ranks."""
TASK_H = 20.0
"""Assumed time limit of a task, as of `opsctl plan spares --task`."""
SAVE_GB_S_PER_NODE = 2.0
"""Assumed bandwidth of a node to its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """A topology that fits, with its memory and time."""

    topology: Topology
    memory: gpu_memory.StageMemory
    parts: dict[str, float]
    """Seconds of a step by part, calibrated."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """What is planned."""

    shape: ModelShape
    cluster: Cluster
    batch: int
    tokens: float
    precision: str = "bf16"
    per_1000_node_days: float = 6.5
    restart_s: float = 600.0
    save_s: float | None = None
    """None: the checkpoint's size over the bandwidth to storage."""
    save_gb_s: float = SAVE_GB_S_PER_NODE
    """Of a node."""
    unplanned: float = 0.0
    """Share of the time that is lost to no failure: slow steps, evaluation, trains that are held or not queued."""
    queue_h: float = 0.0
    """Wait in the queue after a failure that costs the nodes."""
    task_h: float = TASK_H
    price: float | None = None
    """Of a GPU-hour."""
    kernels: str = "fused"
    """Of the layouts that are tried."""
    topology: Topology | None = None
    """Plan this topology alone."""
    factor: float = 1.0
    """Measured over predicted time of a step."""
    bar: ErrorBar | None = None
    """Of a time that a measured step has calibrated; None: not calibrated."""
    fullest: gpu_memory.MemoryModel = gpu_memory.fullest

    def least_recomputed(self, topology: Topology) -> Topology:
        return least_recomputed(self.shape, self.cluster, topology, batch=self.batch, fullest=self.fullest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The figures of a plan. Times in seconds unless the name says otherwise."""

    parameters: int
    layouts: tuple[PlannedLayout, ...]
    tried: int
    bar: ErrorBar
    total_bar: ErrorBar
    """Of days, GPU-hours, cost and energy."""
    steps: int
    step_s: float
    tokens_per_day: float
    tflops: float
    mfu: float
    effective: float
    """Share of the wall-clock time that trains: without failures, saves, and the queue after failures."""
    effective_without_spares: float
    in_task: spares.TaskSpares
    """The spare nodes in each task that pay. Effective time, days and GPU-hours are with them."""
    days: float
    gpu_hours: float
    cost: float | None
    energy_mwh: float
    checkpoint_bytes: float
    save_s: float
    interval_s: float
    mtbf_h: float
    failures: float
    spare_nodes: int


def plan_run(inputs: RunInputs) -> RunPlan:
    """Return the plan of the fastest layout. Raises InputError if no layout fits."""
    tried = [inputs.topology] if inputs.topology else list(list_topologies(inputs))
    fitting = sorted(_fitting(inputs, tried), key=lambda layout: layout.seconds)
    layouts = sorted(
        fitting, key=lambda layout: not layout.memory.fits(inputs.cluster.gpu.memory_gb, gpu_memory.LIKELY)
    )
    if not layouts:
        raise InputError(
            f"none of {len(tried)} layouts fits into {inputs.cluster.gpus} {inputs.cluster.gpu.name}",
            hint="more GPUs, a smaller batch of samples, or --precision; opsctl plan topology --all shows why",
        )
    best = layouts[0]
    cluster, shape = inputs.cluster, inputs.shape
    size_bytes = save_interval.size_bytes(parameters(shape))
    save_s = size_bytes / (inputs.save_gb_s * 1e9 * cluster.nodes) if inputs.save_s is None else inputs.save_s
    mtbf_h = spares.mtbf_hours(cluster.nodes, inputs.per_1000_node_days)
    interval_s = max(best.seconds, save_interval.with_restart(save_s, mtbf_h * 3600, inputs.restart_s))
    in_task = spares.plan_task_spares(
        cluster.nodes, inputs.per_1000_node_days, task_h=inputs.task_h, queue_h=inputs.queue_h
    )
    waits_h = (inputs.queue_h, inputs.queue_h * (1 - in_task.replaced / in_task.lost))
    hours = {"interval_h": interval_s / 3600, "save_h": save_s / 3600, "restart_h": inputs.restart_s / 3600}
    without_spares, effective = (
        (1 - inputs.unplanned) * renewal(mtbf_h=mtbf_h, down_h=wait_h, **hours) for wait_h in waits_h
    )
    steps = math.ceil(inputs.tokens / (inputs.batch * shape.sequence))
    days = steps * best.seconds / 86400 / max(effective, 1e-9)
    gpu_hours = days * 24 * cluster.gpus * (1 + in_task.count / cluster.nodes)
    tflops = step_tflop(shape, batch=inputs.batch, gpus=cluster.gpus, recompute=False) / best.seconds
    out = spares.out_at_once(cluster.nodes, inputs.per_1000_node_days, 3.0)
    return RunPlan(
        parameters=parameters(shape),
        layouts=tuple(layouts),
        tried=len(tried),
        bar=inputs.bar or step_bar(shape, cluster.gpu, best.topology),
        total_bar=inputs.bar or TOTAL_BAR,
        steps=steps,
        step_s=best.seconds,
        tokens_per_day=inputs.batch * shape.sequence / best.seconds * 86400 * effective,
        tflops=tflops,
        mfu=tflops / cluster.gpu.tflops,
        effective=effective,
        effective_without_spares=without_spares,
        in_task=in_task,
        days=days,
        gpu_hours=gpu_hours,
        cost=None if inputs.price is None else gpu_hours * inputs.price,
        energy_mwh=gpu_hours * cluster.gpu.watts / 1e6,
        checkpoint_bytes=size_bytes,
        save_s=save_s,
        interval_s=interval_s,
        mtbf_h=mtbf_h,
        failures=days * 24 / mtbf_h,
        spare_nodes=spares.spares(out, 0.99),
    )


def list_topologies(inputs: RunInputs) -> Iterator[Topology]:
    """Yield the layouts worth trying: TP inside a node, PP and chunks that divide the layers, ZeRO-1, or FSDP alone."""
    shape, gpus = inputs.shape, inputs.cluster.gpus
    longest = 8 if shape.sequence >= LONG_SEQUENCE else 1
    for tp in _powers(min(8, inputs.cluster.gpus_per_node, inputs.cluster.domain)):
        for cp in _powers(longest):
            for pp in range(1, min(shape.layers, gpus // (tp * cp)) + 1):
                is_even = -(-shape.layers // pp) * pp <= MAX_UNEVEN * shape.layers or gives_embedding_slots(shape, pp)
                if gpus % (tp * cp * pp) == 0 and is_even and shape.heads % tp == shape.groups % tp == 0:
                    yield from _list_with_batches(inputs, tp, cp, pp)


def _list_with_batches(inputs: RunInputs, tp: int, cp: int, pp: int) -> Iterator[Topology]:
    shape, dp = inputs.shape, inputs.cluster.gpus // (tp * cp * pp)
    slots = gives_embedding_slots(shape, pp)
    of_all: dict[str, Any] = {"precision": inputs.precision, "kernels": inputs.kernels, "embedding_slots": slots}
    split = Topology(tp=tp, pp=pp, cp=cp, dp=dp, **of_all)
    for micro_batch, ep in itertools.product(MICRO_BATCHES, _expert_ranks(inputs, dp * cp, tp)):
        if inputs.batch % (dp * micro_batch):
            continue
        times = inputs.batch // (dp * micro_batch)
        for chunks in CHUNKS if pp > 1 and times % pp == 0 else (1,):
            for zero in (1, 3) if pp == 1 else (1,):
                if chunks == 1 or shape.layers % (pp * chunks) == 0:
                    yield replace(split, ep=ep, chunks=chunks, micro_batch=micro_batch, zero=zero)


def _expert_ranks(inputs: RunInputs, replicas: int, tp: int) -> list[int]:
    """Return the sizes of expert groups worth trying: a domain of fast links, or more."""
    experts = math.gcd(inputs.shape.experts, replicas) if inputs.shape.experts else 1
    least = min(experts, max(1, inputs.cluster.domain // tp))
    sizes = _powers(min(experts, MAX_EXPERT_RANKS))
    return [ranks for ranks in sizes if ranks >= least and experts % ranks == 0] or [1]


def _fitting(inputs: RunInputs, topologies: list[Topology]) -> Iterator[PlannedLayout]:
    for topology in topologies:
        chosen = topology if inputs.topology else inputs.least_recomputed(topology)
        memory = inputs.fullest(inputs.shape, chosen, batch=inputs.batch)
        if memory.fits(inputs.cluster.gpu.memory_gb) or inputs.topology is not None:
            parts = step_time.predict(inputs.shape, chosen, inputs.cluster, batch=inputs.batch)
            parts = {name: inputs.factor * part for name, part in parts.items()}
            yield PlannedLayout(topology=chosen, memory=memory, parts=parts)


def _powers(most: int) -> list[int]:
    return [2**k for k in range(max(1, most).bit_length())]


_WORD = re.compile(r"(TP|PP|CP|EP|VPP|MB|ZERO|SHARD)[ =]?(\d{1,6})", re.IGNORECASE)
_FIELDS = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "vpp": "chunks", "mb": "micro_batch", "zero": "zero"}


def parse_topology(text: str, inputs: RunInputs) -> Topology:
    """Read `TP8 PP4 MB1`, with CP, EP, VPP, ZERO, SHARD and a kind of recomputation if there is one.

    Without a recomputation, the least that fits. DP follows from the number of GPUs.
    """
    sizes = {word.lower(): int(number) for word, number in _WORD.findall(text)}
    rest = _WORD.sub(" ", text.replace(",", " ")).lower().split()
    unknown = [word for word in rest if word not in RECOMPUTATIONS]
    split = math.prod(sizes.get(name, 1) for name in ("tp", "pp", "cp"))
    if unknown or not sizes or inputs.cluster.gpus % max(split, 1):
        reason = f"{unknown[0]!r} is not known" if unknown else f"{inputs.cluster.gpus} GPUs do not divide"
        raise InputError(f"topology {text!r}: {reason}", hint="such as 'TP8 PP4 MB1 full'")
    fields: dict[str, Any] = {_FIELDS[name]: size for name, size in sizes.items() if name in _FIELDS}
    topology = Topology(
        **{"tp": 1, "pp": 1, **fields},
        dp=inputs.cluster.gpus // split,
        shard=sizes.get("shard"),
        precision=inputs.precision,
        kernels=inputs.kernels,
    )
    return replace(topology, recompute=rest[0]) if rest else inputs.least_recomputed(topology)


def find_factor(inputs: RunInputs, topology: Topology, measured_s: float) -> float:
    """Return measured over predicted time of a step of this model and cluster."""
    return measured_s / sum(step_time.predict(inputs.shape, topology, inputs.cluster, batch=inputs.batch).values())
