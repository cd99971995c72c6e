"""Find all layouts of a model over GPUs, the problems of every layout, and its speed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opsctl.calc import error_bars, gpu_memory, step_time
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.gpu_memory import MemoryModel
from opsctl.calc.parallel_layout import RECOMPUTATIONS, Cluster, Topology
from opsctl.calc.throughput import step_tflop

MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One topology with its problems and figures."""

    topology: Topology
    problems: tuple[str, ...]
    """Reasons why the topology cannot run; empty if it can."""
    ruled_out_by: str
    """The first rule that the topology breaks; empty if it can run."""
    notes: tuple[str, ...]
    """Reasons why the topology is slow."""
    memory_gib: float
    fit_probability: float
    seconds: float
    tflops: float
    bubble: float
    early_s: float
    """Bounds that hold in 8 of 10 cases."""
    late_s: float


def candidates(
    shape: ModelShape,
    cluster: Cluster,
    *,
    batch: int,
    ramp: Sequence[int] = (),
    zero: int = 1,
    precision: str = "bf16",
    micro_batches: Sequence[int] = MICRO_BATCHES,
    recompute: str | None = None,
    attention: str = "flash",
) -> list[Candidate]:
    """Return every (TP, PP, DP, micro batch) that uses all GPUs: usable ones first, then by speed.

    Without `recompute`, every topology recomputes as little as fits into the memory. A mixture spreads its experts over
    as many replicas as divide them, inside a domain of fast links.
    """
    judged = []
    for tp, pp in _splits(shape, cluster):
        for micro_batch in micro_batches:
            dp = cluster.gpus // tp // pp
            topology = Topology(
                tp=tp,
                pp=pp,
                dp=dp,
                ep=_expert_ranks(shape, dp, cluster.domain // tp),
                micro_batch=micro_batch,
                zero=zero,
                precision=precision,
                embedding_slots=gives_embedding_slots(shape, pp),
                recompute=recompute or "none",
                attention=attention,
            )
            if recompute is None:
                topology = least_recomputed(shape, cluster, topology, batch=batch)
            judged.append(judge(shape, cluster, topology, batch=batch, ramp=ramp))
    return sorted(judged, key=lambda candidate: (len(candidate.problems) > 0, candidate.seconds))


def least_recomputed(
    shape: ModelShape,
    cluster: Cluster,
    topology: Topology,
    *,
    batch: int,
    fullest: MemoryModel = gpu_memory.fullest,
) -> Topology:
    """Return the topology with the least recomputation that fits into the memory; with all, if none does."""
    for recompute in RECOMPUTATIONS:
        tried = replace(topology, recompute=recompute)
        if fullest(shape, tried, batch=batch).fits(cluster.gpu.memory_gb, gpu_memory.LIKELY):
            return tried
    return replace(topology, recompute="full")


def _expert_ranks(shape: ModelShape, dp: int, neighbours: int) -> int:
    return max(_divisors(math.gcd(shape.experts, dp), most=max(1, neighbours))) if shape.experts else 1


def _splits(shape: ModelShape, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield TP up to twice a node, to show why more is useless, and PP up to one layer per stage."""
    for tp in _divisors(cluster.gpus, most=2 * cluster.gpus_per_node):
        for pp in _divisors(cluster.gpus // tp, most=shape.layers):
            yield tp, pp


def gives_embedding_slots(shape: ModelShape, pp: int) -> bool:
    """Whether embedding and output count as layers: if PP divides layers + 2 (prequel, "Rebalancing layers")."""
    return pp > 2 and (shape.layers + 2) % pp == 0


def judge(
    shape: ModelShape, cluster: Cluster, topology: Topology, *, batch: int, ramp: Sequence[int] = ()
) -> Candidate:
    """Return the problems, memory and speed of one topology. Figures are present even if the topology cannot run."""
    stage = gpu_memory.fullest(shape, topology, batch=batch)
    seconds = sum(step_time.predict(shape, topology, cluster, batch=batch).values())
    bar = error_bars.step_bar(shape, cluster.gpu, topology)
    problems = [*_find_layout_problems(shape, cluster, topology), *_find_batch_problems(topology, batch, ramp)]
    fitting = stage.fit_probability(cluster.gpu.memory_gb)
    if fitting < 0.5:
        need = f"{stage.gib:.0f} GiB on stage {stage.stage}, a GPU has {cluster.gpu.memory_gb:g}"
        problems.append(("memory", f"{need}: fits with {fitting:.0%}"))
    return Candidate(
        topology=topology,
        problems=tuple(f"{rule}: {problem}" for rule, problem in problems),
        ruled_out_by=problems[0][0] if problems else "",
        notes=tuple(_find_slowdowns(shape, topology, batch, ramp)),
        memory_gib=stage.gib,
        fit_probability=fitting,
        seconds=seconds,
        bubble=topology.bubble(batch),
        tflops=step_tflop(shape, batch=batch, gpus=topology.gpus, recompute=topology.recompute == "full") / seconds,
        early_s=bar.low * seconds,
        late_s=bar.high * seconds,
    )


def _find_layout_problems(shape: ModelShape, cluster: Cluster, topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield every rule that the topology breaks, and how."""
    tp, pp = topology.tp, topology.pp
    if topology.gpus > cluster.gpus:
        yield "size", f"{topology.gpus} GPUs needed, {cluster.gpus} there"
    if tp > cluster.gpus_per_node:
        yield "node", f"TP {tp} crosses nodes of {cluster.gpus_per_node} GPUs"
    if shape.heads % tp:
        yield "heads", f"{shape.heads} heads do not divide by TP {tp}"
    if shape.hidden % tp:
        yield "hidden", f"{shape.hidden} does not divide by TP {tp}"
    if pp > shape.layers:
        yield "stages", f"{pp} stages for {shape.layers} layers"
    elif shape.layers % pp and (shape.layers + 2) % pp:
        yield "stages", f"neither {shape.layers} nor, with the embedding, {shape.layers + 2} layers divide by PP {pp}"


def _find_batch_problems(topology: Topology, batch: int, ramp: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield a rule and a problem if the global batch or a step of the ramp does not divide."""
    unit = topology.dp * topology.micro_batch
    divisor = f"DP {topology.dp} x micro batch {topology.micro_batch}"
    if batch % unit:
        yield "batch", f"{batch} does not divide by {divisor}"
        return
    broken = next((size for size in ramp if size % unit), None)
    if broken is not None:
        yield "ramp", f"{broken} does not divide by {divisor}"


def _find_slowdowns(shape: ModelShape, topology: Topology, batch: int, ramp: Sequence[int]) -> Iterator[str]:
    """Yield slowdowns. The prequel's rows show the effect of head size: 14400 / 64 and 13824 / 128 cost a third."""
    first = min([batch, *ramp])
    if topology.micro_batches(first) < topology.pp:
        yield f"bubble: {topology.micro_batches(first)} micro batches do not fill {topology.pp} stages at batch {first}"
    if shape.head_size % 8:
        yield f"head size: {shape.head_size} is not a multiple of 8, and tensor cores want one"
    if shape.hidden // topology.tp % 64:
        yield f"tile: hidden / TP = {shape.hidden / topology.tp:g} is not a multiple of 64"


def _divisors(number: int, *, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]
