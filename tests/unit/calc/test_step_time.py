"""The predicted time of a step: published rows, and what must hold for any model.

`pytest tests/unit/calc/test_step_time.py`
"""

from dataclasses import replace

import pytest

from opsctl.calc import gpu_memory, step_time
from opsctl.calc.accelerators import accelerator
from opsctl.calc.error_bars import TOTAL_BAR, step_bar
from opsctl.calc.gpt_size import PUBLISHED, ModelShape
from opsctl.calc.parallel_layout import Cluster, Topology
from tests.support.published_rows import BLOOM, PublishedRow, predict_s, read_rows
from tests.support.published_totals import read_totals

TUNING = [row for row in read_rows() if row.half == "tuning"]
TIMED = [row for row in TUNING if row.seconds]
A100S = Cluster(nodes=48, gpus_per_node=8, gpu=accelerator("A100"), node_gb_s=50)
H100S = Cluster(nodes=2, gpus_per_node=8, gpu=accelerator("H100"))
LLAMA = replace(PUBLISHED["llama-3-8b"], sequence=8192)
PLAIN = Topology(tp=1, pp=1, dp=16)


def error(row: PublishedRow) -> float:
    return abs(predict_s(row) / (row.seconds or 1) - 1)


def seconds(topology: Topology, *, shape: ModelShape = LLAMA, cluster: Cluster = H100S, batch: int = 128) -> float:
    return sum(step_time.predict(shape, topology, cluster, batch=batch).values())


def test_half_of_the_tuning_rows_is_within_8_percent() -> None:
    errors = sorted(error(row) for row in TIMED)
    assert errors[len(errors) // 2] < 0.08
    assert errors[int(0.9 * len(errors))] < 0.4


def test_error_bars_hold_for_most_tuning_rows() -> None:
    inside = 0
    for row in TIMED:
        bar = step_bar(row.shape, row.cluster.gpu, row.topology)
        inside += bar.low <= (row.seconds or 1) / predict_s(row) <= bar.high
    assert 0.8 < inside / len(TIMED) < 0.96


def test_most_rows_that_ran_fit_and_most_that_ran_out_do_not() -> None:
    """All tuning halves. The others were read once, and are not read here."""
    fitting: dict[bool, list[bool]] = {True: [], False: []}
    for row in read_rows():
        if row.half.startswith("tuning"):
            need = gpu_memory.fullest(row.shape, row.topology, batch=row.batch)
            fitting[row.ran].append(need.fits(row.cluster.gpu.memory_gb))
    assert (len(fitting[True]), len(fitting[False])) == (475, 31)
    assert sum(fitting[True]) > 0.99 * len(fitting[True])
    assert sum(fitting[False]) < 0.1 * len(fitting[False])


def test_published_totals_of_runs_lie_in_the_range() -> None:
    """Of other makers than those of which the range is."""
    ratios = {half: [run.ratio for run in read_totals() if run.row["half"] == half] for half in ("tuning", "test")}
    assert (min(ratios["tuning"]), max(ratios["tuning"])) == pytest.approx((TOTAL_BAR.low, TOTAL_BAR.high), rel=0.02)
    inside = [TOTAL_BAR.low <= ratio <= TOTAL_BAR.high for ratio in ratios["test"]]
    assert len(inside) >= 19 and sum(inside) > 0.8 * len(inside)


def test_second_collection_is_within_40_percent() -> None:
    """The tuning part. The held-out part was read once, and is not read here."""
    rows = [row for row in read_rows() if row.half == "tuning-2" and row.seconds]
    errors = sorted(error(row) for row in rows)
    assert errors[len(errors) // 2] < 0.22
    assert errors[int(0.9 * len(errors))] < 0.4


def test_eager_kernels_cost_time_and_memory() -> None:
    eager = replace(PLAIN, kernels="eager", zero=3)
    fused = replace(eager, kernels="fused")
    assert 1.2 < seconds(eager) / seconds(fused) < 3
    needs = [gpu_memory.fullest(LLAMA, topology, batch=128).activations for topology in (eager, fused)]
    assert 1.2 < needs[0] / needs[1] < 1.7


def test_bars_are_wider_where_trainers_differ_most() -> None:
    plain, sharded = (step_bar(LLAMA, accelerator("H100"), replace(PLAIN, zero=zero)) for zero in (1, 3))
    amd = step_bar(LLAMA, accelerator("MI300X"), PLAIN)
    assert plain.high < sharded.high < amd.high


def test_bloom_topology_is_predicted_at_150_tflops() -> None:
    assert seconds(BLOOM, shape=PUBLISHED["bloom"], cluster=A100S, batch=2048) == pytest.approx(105, rel=0.1)


def test_head_size_not_divisible_by_8_costs_a_third() -> None:
    good, bad = (replace(PUBLISHED["bloom"], hidden=13824, heads=heads) for heads in (64, 128))
    times = [seconds(BLOOM, shape=shape, cluster=A100S, batch=2048) for shape in (good, bad)]
    assert times[1] / times[0] > 1.3


def test_fp8_is_faster_where_the_gpu_has_it() -> None:
    assert seconds(replace(PLAIN, precision="fp8")) < 0.85 * seconds(PLAIN)
    a100s = replace(H100S, gpu=accelerator("A100"))
    assert seconds(replace(PLAIN, precision="fp8"), cluster=a100s) >= 0.95 * seconds(PLAIN, cluster=a100s)


def test_full_recomputation_costs_a_forward_pass() -> None:
    ratio = seconds(replace(PLAIN, recompute="full")) / seconds(PLAIN)
    assert 1.2 < ratio < 1.34


def test_chunks_shrink_the_bubble() -> None:
    pipeline = Topology(tp=1, pp=4, dp=4)
    parts = [
        step_time.predict(LLAMA, replace(pipeline, chunks=chunks), H100S, batch=128)["bubble"] for chunks in (1, 2, 4)
    ]
    assert parts[0] == pytest.approx(2 * parts[1]) == pytest.approx(4 * parts[2])


def test_zero_bubble_schedule_leaves_a_third() -> None:
    pipeline = Topology(tp=1, pp=4, dp=4)
    plain, filled = (
        step_time.predict(LLAMA, replace(pipeline, schedule=name), H100S, batch=128)["bubble"]
        for name in ("1f1b", "zero-bubble")
    )
    assert filled == pytest.approx(plain / 3)


def test_slow_network_costs_time() -> None:
    slow = replace(H100S, node_gb_s=10)
    assert seconds(replace(PLAIN, zero=3), cluster=slow) > 1.5 * seconds(replace(PLAIN, zero=3))


def test_experts_beyond_a_node_cost_time() -> None:
    mixtral = PUBLISHED["mixtral-8x7b"]
    inside, across = (
        step_time.predict(mixtral, Topology(tp=tp, pp=1, dp=16 // tp, ep=8), H100S, batch=64)["experts"]
        for tp in (1, 2)
    )
    assert across > 2 * inside > 0


def test_rack_with_nvlink_has_no_slow_experts() -> None:
    rack = Cluster(nodes=16, gpus_per_node=4, gpu=accelerator("GB200"))
    nodes = Cluster(nodes=8, gpus_per_node=8, gpu=accelerator("B200"))
    shape = PUBLISHED["deepseek-v3"]
    topology = Topology(tp=1, pp=1, dp=64, ep=64)
    times = [step_time.predict(shape, topology, cluster, batch=64)["experts"] for cluster in (rack, nodes)]
    assert times[1] > 5 * times[0]
