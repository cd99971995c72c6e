"""Communication times against the figures of the documents. `pytest tests/unit/calc/test_network.py`"""

import pytest

from opsctl.calc import throughput
from opsctl.calc.accelerators import accelerator

IDEFICS = {"billions": 80, "sequence": 1024, "batch": 3584, "gpus": 512}


def test_idefics_communicates_11_s_and_computes_18_s() -> None:
    traffic = throughput.traffic(zero=3, gb_s=42.5, tflops=250, **IDEFICS)
    assert traffic.communication_s == pytest.approx(11, abs=0.5)
    assert traffic.compute_s == pytest.approx(18, abs=0.5)
    assert not traffic.network_bound


def test_18_s_of_compute_imply_250_tflops() -> None:
    """The book says 234 TFLOPs just before."""
    assert throughput.compute_s(tflops=250, **IDEFICS) == pytest.approx(18.4, abs=0.05)
    assert throughput.compute_s(tflops=312 * 0.75, **IDEFICS) == pytest.approx(19.6, abs=0.05)


def test_idefics_computes_51_s_at_the_logged_90_tflops() -> None:
    assert throughput.compute_s(tflops=90, **IDEFICS) == pytest.approx(51, abs=0.1)


@pytest.mark.parametrize(("gb_s", "seconds"), [(8.5, 56), (212, 2)])
def test_five_times_slower_or_faster_network(gb_s: float, seconds: float) -> None:
    assert throughput.sent_gb(billions=80, zero=3) / gb_s == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 40), (1, 40), (2, 40), (3, 60)])
def test_10b_sends_60_gb_under_zero_3_and_40_otherwise(zero: int, gigabytes: int) -> None:
    assert throughput.sent_gb(billions=10, zero=zero) == gigabytes


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 40), (1, 40), (2, 100), (3, 240)])
def test_accumulation_adds_nothing_under_zero_1(zero: int, gigabytes: int) -> None:
    assert throughput.sent_gb(billions=10, zero=zero, accumulation=4) == gigabytes


def test_16_gb_take_an_h100_node_0_035_s() -> None:
    assert 16 / accelerator("H100").link_gb_s == pytest.approx(0.035, abs=0.001)


@pytest.mark.parametrize(("name", "links"), [("V100", 6), ("A100", 12), ("H100", 18)])
def test_nvlink_has_25_gb_s_each_way(name: str, links: int) -> None:
    assert accelerator(name).link_gb_s == 25 * links


def test_advertised_nvlink_counts_both_ways() -> None:
    assert 235 / accelerator("A100").link_gb_s == pytest.approx(0.8, abs=0.02)


def test_half_billion_bucket_is_1_gb_in_bf16_and_2_in_fp32() -> None:
    assert [throughput.sent_gb(billions=0.5, zero=0, bytes_per_parameter=size) / 2 for size in (2, 4)] == [1, 2]


def test_idefics_step_of_49_s_has_30_s_explained() -> None:
    # The book: "the math checks out as comms + compute are in the ballpark of the measured time"
    traffic = throughput.traffic(zero=3, gb_s=42.5, tflops=250, **IDEFICS)
    assert traffic.communication_s + traffic.compute_s == pytest.approx(29.7, abs=0.1)


def test_low_arithmetic_intensity_is_network_bound() -> None:
    balance = throughput.traffic(zero=3, gb_s=1, tflops=250, **IDEFICS).balance_gb_s
    below, above = (throughput.traffic(zero=3, gb_s=balance * by, tflops=250, **IDEFICS) for by in (0.99, 1.01))
    assert (below.network_bound, above.network_bound) == (True, False)
