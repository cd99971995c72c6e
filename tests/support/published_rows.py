"""The published measurements of tests/corpus/plan/published as shapes, topologies and clusters.

A source does not state everything. What is missing is assumed by the rules below, the same for all tables.
"""

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from opsctl.calc import step_time
from opsctl.calc.accelerators import ACCELERATORS
from opsctl.calc.gpt_size import HEAD_COLUMNS, LLAMA, PUBLISHED, ModelShape, active_parameters, gated_width, parameters
from opsctl.calc.gpu_memory import fullest
from opsctl.calc.parallel_layout import Cluster, Topology
from tests.support.cases import read_table

FILE = Path(__file__).parents[1] / "corpus/plan/published/rows.csv"
GPUS = read_table(__file__, "gpus")
BLOOM = Topology(**read_table(__file__, "bloom"))
"""The layout of BLOOM's training."""
RECOMPUTED = ("none", "selective", "alternate", "full")
"""A row that does not state its recomputation used the least with which it fits."""


ASSUMED_TOKENS = 4 * 2**20


def shape_of_size(billions: float, *, vocabulary: int = 50257, sequence: int = 4096) -> ModelShape:
    """Return a Llama-like shape of about this size: hidden is a multiple of a head, about 128 times the layers."""
    layers = max(1, round((billions * 1e9 / (12 * 128**2)) ** (1 / 3)))
    shapes = [
        ModelShape(
            layers=layers,
            hidden=heads * HEAD_COLUMNS,
            heads=heads,
            ffn=gated_width(heads * HEAD_COLUMNS),
            vocabulary=vocabulary,
            sequence=sequence,
            **LLAMA,
        )
        for heads in range(1, 257)
    ]
    return min(shapes, key=lambda shape: abs(parameters(shape) - billions * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    table: str
    half: str
    name: str
    shape: ModelShape
    topology: Topology
    cluster: Cluster
    batch: int
    seconds: float | None
    memory_gib: float | None
    ran: bool


def predict_s(row: PublishedRow, fitted: step_time.Efficiencies = step_time.EFFICIENCIES) -> float:
    return sum(step_time.predict(row.shape, row.topology, row.cluster, batch=row.batch, fitted=fitted).values())


@cache
def read_rows() -> tuple[PublishedRow, ...]:
    with FILE.open(newline="") as file:
        return tuple(_row(fields) for fields in csv.DictReader(file))


def _row(fields: dict[str, str]) -> PublishedRow:
    shape, cluster = _shape(fields), _cluster(fields)
    is_timed = bool(fields["sequence"]) or _derive_sequence(fields) is not None
    topology = _topology(fields, cluster)
    batch = _batch(fields, topology)
    if (
        not fields["micro_batch"] and fields["global_batch"] and topology.pp > 1
    ):  # torchtitan's default: as many micro batches as stages
        topology = replace(topology, micro_batch=max(1, batch // (topology.dp * topology.pp)))
    if not fields["recompute"]:
        topology = _least_recomputed(shape, topology, cluster, batch)
    return PublishedRow(
        table=fields["table"],
        half=fields["half"],
        name=f"{fields['model']} {fields['gpu']} x{fields['gpus']} {fields['precision']} s{shape.sequence} "
        f"mb{topology.micro_batch} tp{topology.tp} pp{topology.pp} {topology.recompute}",
        shape=shape,
        topology=topology,
        cluster=cluster,
        batch=batch,
        seconds=_seconds(fields, shape, topology, batch) if is_timed else None,
        memory_gib=_float(fields["memory_gib"]),
        ran=fields["outcome"] == "ran",
    )


def _preset(model: str) -> ModelShape | None:
    """Return the preset of a public model, which has latent attention, windows and shared experts."""
    for name, shape in PUBLISHED.items():
        if re.sub(r"\W", "", name) == re.sub(r"\W", "", model):
            return shape
    return None


def _shape(fields: dict[str, str]) -> ModelShape:
    known = {
        "layers": _int(fields["layers"]),
        "hidden": _int(fields["hidden"]),
        "heads": _int(fields["heads"]),
        "kv_heads": _int(fields["kv_heads"]),
        "ffn": _int(fields["ffn"]),
        "vocabulary": _int(fields["vocabulary"]),
        "sequence": _int(fields["sequence"]) or _derive_sequence(fields),
        "experts": _int(fields["experts"]),
        "active_experts": _int(fields["active_experts"]),
    }
    stated = {name: value for name, value in known.items() if value}
    if preset := _preset(fields["model"]):
        return replace(preset, **stated)
    gated = fields["gated_mlp"] == "1"
    if not {"layers", "hidden"} <= stated.keys():
        size = shape_of_size(float(fields["parameters_b"] or 1), vocabulary=stated.get("vocabulary", 50257))
        return replace(size, **{name: value for name, value in stated.items() if name in ("vocabulary", "sequence")})
    stated.setdefault("heads", max(1, stated["hidden"] // 128))
    stated.setdefault("vocabulary", 1000 if "small vocabulary" in fields["notes"] else 50257)
    tied = fields["tied_embeddings"] != "0"
    return ModelShape(**stated, gated=gated, biases=not gated, positions=not gated, tied=tied)


def _derive_sequence(fields: dict[str, str]) -> int | None:
    """Return the sequence that time, speed and batch give. Without it, the time of a row says nothing."""
    seconds, rate = _float(fields["seconds_per_step"]), _float(fields["tokens_per_s_per_gpu"])
    batch, gpus = _int(fields["global_batch"]), _int(fields["gpus"])
    return round(seconds * rate * gpus / batch) if seconds and rate and batch and gpus else None


def _cluster(fields: dict[str, str]) -> Cluster:
    gpu = ACCELERATORS[GPUS.get(fields["gpu"], fields["gpu"])]
    gpus = _int(fields["gpus"]) or 1
    has_small_nodes = gpu.domain > 8 or fields["table"].startswith("bigscience-")
    stated = re.search(r"(\d+) GPUs? a node", fields["notes"])
    largest = 4 if has_small_nodes else 8  # GB200's trays; Jean Zay's nodes with V100
    per_node = min(gpus, int(stated[1]) if stated else largest)
    network = re.search(r"([\d.]+) Gb/s", fields["notes"])
    node_gb_s = float(network[1]) / 8 if network else None
    return Cluster(nodes=-(-gpus // per_node), gpus_per_node=per_node, gpu=gpu, node_gb_s=node_gb_s)


def _topology(fields: dict[str, str], cluster: Cluster) -> Topology:
    tp, pp, cp = (_int(fields[name]) or 1 for name in ("tp", "pp", "cp"))
    gpus = _int(fields["gpus"]) or 1
    if not fields["tp"] and pp > 1:  # a pipeline of one replica
        tp = max(1, min(cluster.gpus_per_node, gpus // (pp * cp)))
    batch = _int(fields["global_batch"])
    if batch and gpus // (tp * pp * cp) > batch:  # ranks without a sample of their own share sequences
        cp = gpus // (tp * pp * batch)
    is_old = fields["version_date"] < "2022-07"
    zero = {"fsdp": 3, "hsdp": 3, "": 0 if is_old else 1}.get(fields["zero"])
    zero = int(fields["zero"]) if zero is None else zero
    unfused = fields["attention"] == "unfused" or (fields["attention"] == "unknown" and is_old)
    return Topology(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=max(1, gpus // (tp * pp * cp)),
        ep=_int(fields["ep"]) or 1,
        chunks=_int(fields["vpp"]) or 1,
        micro_batch=_int(fields["micro_batch"]) or 1,
        zero=zero,
        shard=_shard(fields, cluster),
        precision=_precision(fields),
        recompute=_recompute(fields, zero),
        attention="unfused" if unfused else "flash",
        sequence_parallel=not unfused and fields["sequence_parallel"] != "0",
        kernels="eager" if "eager" in fields["notes"] else "fused",
        overlap=not (is_old and (pp > 1 or zero == 3)),
        offload="offload" in fields["notes"],
        fused_loss="loss fused" in fields["notes"],
        accumulates_whole=bool(re.search(r"\d accumulations", fields["notes"])),
    )


def _recompute(fields: dict[str, str], zero: int) -> str:
    """Return the recomputation; torchtitan's and FSDP's `selective` is by operation, or of every second layer."""
    if fields["recompute"] != "selective" or zero < 3:
        return fields["recompute"] or "none"
    return "alternate" if re.search("second layer|of 80 layers", fields["notes"]) else "operations"


def _shard(fields: dict[str, str], cluster: Cluster) -> int | None:
    group = re.search(r"dp_shard (\d+)|groups of (\d+)", fields["notes"])
    if group:
        return int(group[1] or group[2])
    return cluster.gpus_per_node if fields["zero"] == "hsdp" else None


def _precision(fields: dict[str, str]) -> str:
    if "PURE" in fields["notes"]:
        return "bf16-pure"
    return {"fp8": "fp8", "fp4": "fp4", "fp16": "fp16"}.get(fields["precision"], "bf16")


def _batch(fields: dict[str, str], topology: Topology) -> int:
    """Return the global batch; if it is not stated, what time and speed give, else whole micro batches of 4M tokens."""
    sequence = _int(fields["sequence"]) or 4096
    seconds, rate = _float(fields["seconds_per_step"]), _float(fields["tokens_per_s_per_gpu"])
    if stated := _int(fields["global_batch"]):
        return stated
    unit = topology.dp * topology.micro_batch
    tokens = seconds * rate * topology.gpus if seconds and rate else ASSUMED_TOKENS
    return unit * max(1, round(tokens / sequence / unit))


def _least_recomputed(shape: ModelShape, topology: Topology, cluster: Cluster, batch: int) -> Topology:
    for recompute in RECOMPUTED:
        tried = replace(topology, recompute=recompute)
        if fullest(shape, tried, batch=batch).fits(cluster.gpu.memory_gb):
            return tried
    return replace(topology, recompute="full")


def _seconds(fields: dict[str, str], shape: ModelShape, topology: Topology, batch: int) -> float | None:
    """Return the seconds of a step, from the first of: seconds, tokens/s, TFLOPs, MFU."""
    tokens = batch * shape.sequence / topology.gpus
    if seconds := _float(fields["seconds_per_step"]):
        return seconds
    if rate := _float(fields["tokens_per_s_per_gpu"]):
        return tokens / rate
    tflops = _float(fields["tflops_per_gpu"])
    if tflops is None and (mfu := _float(fields["mfu_percent"])):
        tflops = mfu / 100 * ACCELERATORS[GPUS.get(fields["gpu"], fields["gpu"])].tflops
    if tflops is None:
        return None
    attention = 4 * shape.sequence * shape.heads * shape.head_size * shape.layers
    return tokens * 3 * (2 * active_parameters(shape) + attention) / (tflops * 1e12)


def _int(text: str) -> int | None:
    return int(float(text)) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None
