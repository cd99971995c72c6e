"""The plan of a run: layouts that fit, calibration, cost. `pytest tests/unit/calc/test_run_plan.py`"""

from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.error_bars import CALIBRATED_BAR
from opsctl.calc.gpt_size import PUBLISHED, parameters
from opsctl.calc.parallel_layout import Cluster, Topology
from opsctl.calc.run_plan import RunInputs, find_factor, parse_topology, plan_run

H100 = accelerator("H100")
LLAMA = PUBLISHED["llama-3-8b"]
EIGHT = RunInputs(shape=LLAMA, cluster=Cluster(nodes=1, gpus_per_node=8, gpu=H100), batch=128, tokens=1e9)
MANY = RunInputs(
    shape=replace(PUBLISHED["llama-3-70b"], sequence=4096),
    cluster=Cluster(nodes=64, gpus_per_node=8, gpu=H100),
    batch=1024,
    tokens=15e12,
)


@pytest.mark.parametrize("words", ["TP1 CP2", "TP1 ZERO3", "TP2"])
def test_llama_8b_fits_on_8_h100(words: str) -> None:
    """NVIDIA's own example was refused with 517 GiB."""
    need = gpu_memory.fullest(LLAMA, parse_topology(f"{words} none", EIGHT), batch=128)
    assert need.fit_probability(H100.memory_gb) > 0.5
    assert need.gib <= 80


def test_llama_70b_fits_with_tp4_pp4() -> None:
    """The same was refused with 206 GiB."""
    topology = Topology(tp=4, pp=4, dp=4)
    assert gpu_memory.fullest(PUBLISHED["llama-2-70b"], topology, batch=128).gib < 80


def test_70b_on_512_h100_has_layouts() -> None:
    plan = plan_run(MANY)
    assert len(plan.layouts) > 50
    assert 0.35 < plan.mfu < 0.6
    likely = [layout.seconds for layout in plan.layouts if layout.memory.fits(H100.memory_gb, gpu_memory.LIKELY)]
    assert plan.layouts[0].seconds == min(likely)


def test_mixture_with_an_odd_number_of_layers_has_layouts() -> None:
    shape = PUBLISHED["deepseek-v3"]
    inputs = replace(MANY, shape=shape, cluster=Cluster(nodes=256, gpus_per_node=8, gpu=H100), batch=8192)
    plan = plan_run(inputs)
    assert any(layout.topology.pp > 1 and layout.topology.ep > 1 for layout in plan.layouts)


def test_model_that_never_fits_is_refused() -> None:
    with pytest.raises(InputError, match=r"none of \d+ layouts fits into 8 H100"):
        plan_run(replace(EIGHT, shape=PUBLISHED["llama-3.1-405b"]))


def test_measured_step_scales_all_layouts() -> None:
    topology = parse_topology("TP2 PP1 MB1", EIGHT)
    plain = plan_run(EIGHT)
    measured_s = 2 * next(layout.seconds for layout in plain.layouts if layout.topology == topology)
    doubled = plan_run(replace(EIGHT, factor=find_factor(EIGHT, topology, measured_s), bar=CALIBRATED_BAR))
    assert doubled.step_s == pytest.approx(2 * plain.step_s)
    assert doubled.bar.high / doubled.bar.low < plain.bar.high / plain.bar.low


def test_topology_in_words_is_read() -> None:
    topology = parse_topology("tp8, PP4 VPP2 mb2 full", MANY)
    assert (topology.tp, topology.pp, topology.chunks, topology.micro_batch) == (8, 4, 2, 2)
    assert (topology.dp, topology.recompute) == (16, "full")


@pytest.mark.parametrize("words", ["fast", "", "TP3", "TP8 quick"])
def test_unreadable_topology_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="topology"):
        parse_topology(words, MANY)


def test_cost_is_hours_times_price() -> None:
    plan = plan_run(replace(EIGHT, price=2.5))
    assert plan.cost == pytest.approx(2.5 * plan.gpu_hours)
    assert plan.gpu_hours == pytest.approx(plan.days * 24 * 8)
    assert plan.energy_mwh == pytest.approx(plan.gpu_hours * 700 / 1e6)


def test_tokens_a_day_match_the_days() -> None:
    plan = plan_run(MANY)
    assert plan.tokens_per_day * plan.days == pytest.approx(15e12, rel=0.001)
    assert plan_run(replace(MANY, unplanned=0.1)).days == pytest.approx(plan.days / 0.9)


def test_checkpoint_has_14_bytes_a_parameter() -> None:
    assert plan_run(EIGHT).checkpoint_bytes == 14 * parameters(LLAMA)


def test_own_gpu_is_given_by_figures() -> None:
    own = accelerator("tflops=500,memory_gb=64,memory_tb_s=2.5,link_gb_s=300,network_gb_s=20")
    assert (own.tflops, own.memory_gb, own.network_gb_s, own.domain) == (500, 64, 20, 8)


@pytest.mark.parametrize("text", ["tflops=500", "tflops=x,memory_gb=1,memory_tb_s=1,link_gb_s=1", "what=3"])
def test_incomplete_figures_of_a_gpu_are_refused(text: str) -> None:
    assert list(unknown(text))


def test_two_dies_of_an_mi250x_are_two_devices() -> None:
    assert (accelerator("MI250X").memory_gb, accelerator("MI250X").tflops) == (64, 191.5)
