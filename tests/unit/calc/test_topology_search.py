"""Topologies that can run, and the rules that exclude the others. `pytest tests/unit/calc/test_topology_search.py`"""

from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.calc.accelerators import accelerator
from opsctl.calc.error_bars import MEMORY_LIMITS
from opsctl.calc.gpt_size import PUBLISHED, ModelShape
from opsctl.calc.parallel_layout import Cluster, Topology, ramp_sizes
from opsctl.calc.topology_search import candidates, judge
from tests.support.cases import read_cases

BLOOM = PUBLISHED["bloom"]
NODES = Cluster(nodes=48, gpus_per_node=8, gpu=accelerator("A100"))
CHOSEN = Topology(tp=4, pp=12, dp=8, micro_batch=2, precision="bf16-optimizer", embedding_slots=True, recompute="full")


def problems(topology: Topology, *, shape: ModelShape = BLOOM, batch: int = 2048, ramp: str = "") -> tuple[str, ...]:
    sizes = ramp_sizes(ramp, batch) if ramp else ()
    return judge(shape, NODES, topology, batch=batch, ramp=sizes).problems


def test_topology_of_bloom_can_run() -> None:
    assert problems(CHOSEN, ramp="192:16") == ()


def test_topology_of_bloom_is_near_the_best() -> None:
    ranked = candidates(
        BLOOM, NODES, batch=2048, ramp=ramp_sizes("192:16", 2048), precision="bf16-optimizer", recompute="full"
    )
    position = next(k for k, candidate in enumerate(ranked) if candidate.topology == CHOSEN)
    assert position < 5
    assert ranked[position].seconds / ranked[0].seconds < 1.03


@pytest.mark.parametrize(*read_cases(__file__, "broken_rule_is_named"))
def test_broken_rule_is_named(changed: dict[str, int], problem: str) -> None:
    assert problem in problems(replace(CHOSEN, **changed))  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(*read_cases(__file__, "global_batch_is_the_product_of_its_factors"))
def test_global_batch_is_the_product_of_its_factors(sizes: dict[str, int], batch: int, accumulation: int) -> None:
    laid = Topology(**sizes)  # type: ignore[arg-type]  # fields by name
    assert laid.micro_batches(batch) == accumulation
    assert laid.dp * laid.micro_batch * accumulation == batch


def test_ramp_by_16_keeps_16_replicas() -> None:
    v100 = Cluster(nodes=32, gpus_per_node=4, gpu=accelerator("V100"))
    shape = ModelShape(layers=40, hidden=5120, heads=32, vocabulary=50257)
    ramp = ramp_sizes("16:16", 1024)
    for nodes, fits in ((32, True), (64, False)):
        topology = Topology(tp=2, pp=4, dp=nodes * 4 // (4 * 2), precision="fp16")
        messages = judge(shape, replace(v100, nodes=nodes), topology, batch=1024, ramp=ramp).problems
        assert (not any("ramp" in message for message in messages)) is fits


def test_gib_of_gpu_memory_decides() -> None:
    needs = judge(BLOOM, NODES, CHOSEN, batch=2048).memory_gib
    half = needs / MEMORY_LIMITS["flat"]["at"]
    for memory_gb, fits in ((half - 1, False), (half + 1, True)):
        cluster = replace(NODES, gpu=replace(NODES.gpu, memory_gb=memory_gb))
        assert (judge(BLOOM, cluster, CHOSEN, batch=2048).problems == ()) is fits


def test_indivisible_hidden_size_is_reported() -> None:
    odd = ModelShape(layers=70, hidden=9, heads=9, vocabulary=100)
    assert "hidden: 9 does not divide by TP 4" in problems(CHOSEN, shape=odd)


def test_indivisible_step_of_a_ramp_is_reported() -> None:
    assert "ramp: 400 does not divide by DP 24 x micro batch 1" in problems(
        replace(CHOSEN, pp=4, dp=24, micro_batch=1), batch=1536, ramp="384:16"
    )


def test_ramp_of_the_prequel_limits_the_replicas() -> None:
    sizes = {dp: problems(replace(CHOSEN, dp=dp, micro_batch=1), batch=2016, ramp="32:32") for dp in (4, 6, 8)}
    fitting = []
    for dp, messages in sizes.items():
        if not any("ramp" in message for message in messages):
            fitting.append(dp)
    assert fitting == [4, 8]


def test_batch_that_does_not_fill_the_pipeline_is_noted() -> None:
    # main-1 of the prequel started at 16 and ran at 8 TFLOPs
    notes = judge(BLOOM, NODES, CHOSEN, batch=2048, ramp=ramp_sizes("16:16", 2048)).notes
    assert "bubble: 1 micro batches do not fill 12 stages at batch 16" in notes
    assert not any("bubble" in note for note in judge(BLOOM, NODES, CHOSEN, batch=2048, ramp=[192]).notes)


def test_head_size_off_the_tensor_cores_is_noted() -> None:
    wide = replace(BLOOM, hidden=13824, heads=128)
    assert (
        "head size: 108 is not a multiple of 8, and tensor cores want one"
        in judge(wide, NODES, CHOSEN, batch=2048).notes
    )


def test_hidden_size_off_the_tiles_is_noted() -> None:
    off = replace(BLOOM, hidden=14400, heads=96)
    notes = judge(off, NODES, replace(CHOSEN, tp=8, pp=6), batch=2048).notes
    assert "tile: hidden / TP = 1800 is not a multiple of 64" in notes


def test_ramp_must_reach_its_batch() -> None:
    assert list(ramp_sizes("192:16", 240)) == [192, 208, 224, 240]
    for text in ("192:100", "fast", "4096:1", "0:16"):
        with pytest.raises(InputError, match=f"--ramp '{text}' does not lead to a batch of 2048"):
            ramp_sizes(text, 2048)


def test_candidates_use_all_gpus_and_runnable_come_first() -> None:
    ranked = candidates(BLOOM, NODES, batch=2048)
    assert all(candidate.topology.gpus == 384 for candidate in ranked)
    can_run = [not candidate.problems for candidate in ranked]
    assert can_run == sorted(can_run, reverse=True)
