"""Communication times against the figures of the documents. `pytest tests/unit/calc/test_network.py`"""

from functools import partial

import pytest

from opsctl.calc import throughput

IDEFICS = partial(throughput.traffic, billions=80, zero=3, sequence=1024, batch=3584, gpus=512)


def test_idefics_communicates_11_s_and_computes_18_s() -> None:
    traffic = IDEFICS(gb_s=42.5, tflops=250)
    assert traffic.communication_s == pytest.approx(11, abs=0.5)
    assert traffic.compute_s == pytest.approx(18.4, abs=0.05)
    assert not traffic.network_bound


def test_idefics_computes_51_s_at_the_logged_90_tflops() -> None:
    assert IDEFICS(gb_s=42.5, tflops=90).compute_s == pytest.approx(51, abs=0.1)


@pytest.mark.parametrize(("gb_s", "seconds"), [(8.5, 56), (212, 2)])
def test_five_times_slower_or_faster_network(gb_s: float, seconds: float) -> None:
    assert IDEFICS(gb_s=gb_s, tflops=250).communication_s == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("zero", "once", "accumulated"), [(0, 40, 40), (1, 40, 40), (2, 40, 100), (3, 60, 240)])
def test_accumulation_adds_nothing_under_zero_1(zero: int, once: int, accumulated: int) -> None:
    sent = [IDEFICS(billions=10, zero=zero, accumulation=count, gb_s=1, tflops=1).sent_gb for count in (1, 4)]
    assert sent == [once, accumulated]


def test_low_arithmetic_intensity_is_network_bound() -> None:
    balance = IDEFICS(gb_s=1, tflops=250).balance_gb_s
    below, above = (IDEFICS(gb_s=balance * by, tflops=250) for by in (0.99, 1.01))
    assert (below.network_bound, above.network_bound) == (True, False)
