"""Time, TFLOPs and cost against the figures of the documents. `pytest tests/unit/calc/test_throughput.py`"""

from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.calc import throughput
from opsctl.calc.accelerators import ACCELERATORS, accelerator
from opsctl.calc.gpt_size import PUBLISHED
from opsctl.calc.time_left import time_left
from opsctl.telemetry.progress.log_formats import parse_megatron
from opsctl.trainer.model_size import peak_tflops

HOUR = 3600.0
LOG = Path(__file__).parents[2] / "corpus/logs/tr11-176b.txt"


def test_200b_on_300b_tokens_take_105_82_days() -> None:
    hours = throughput.gpu_hours(billions=200, tokens_billions=300, tflops=150)
    assert hours == pytest.approx(888_888.89, abs=0.005)
    assert hours / 350 / 24 == pytest.approx(105.82, abs=0.005)


def test_log_lines_of_the_prequel_are_consistent() -> None:
    iterations = [parse_megatron(text) for text in LOG.read_text().splitlines()]
    lines = [line for line in iterations if line]
    assert len(lines) == 2
    for line in lines:
        assert line.global_batch and line.step_s and line.consumed_samples and line.samples_per_s
        assert line.tokens == 2048 * line.consumed_samples
        assert line.global_batch / line.step_s == pytest.approx(line.samples_per_s, abs=0.0006)


def test_half_the_peak_doubles_the_time() -> None:
    week = throughput.gpu_hours(billions=10, tokens_billions=294.84, tflops=312) / 125 / 24
    assert week == pytest.approx(7, abs=0.001)
    assert throughput.gpu_hours(billions=10, tokens_billions=294.84, tflops=156) / 125 / 24 == 2 * week


def test_145m_samples_left_take_82_tasks_of_20_hours() -> None:
    steps = 145_000_000 / 784
    remaining = time_left(steps=round(steps), step_s=32, attempt_s=20 * HOUR, waits_s=[4 * HOUR])
    assert remaining.training / (20 * HOUR) == pytest.approx(82, abs=0.3)
    assert remaining.likely / (24 * HOUR) == pytest.approx(82, abs=0.5)
    for faster, days in ((2, 41), (4, 20.5)):
        assert time_left(steps=round(steps), step_s=32 / faster).training / (20 * HOUR) == pytest.approx(days, abs=0.2)


def test_exact_formula_is_four_forwards_and_the_output_layer() -> None:
    # forward of a layer: 24Bsh² + 4Bs²h; the output layer, 2BsVh, is not recomputed
    shape, batch = PUBLISHED["bloom"], 2048
    s, h = shape.sequence, shape.hidden
    layer, output = 24 * batch * s * h**2 + 4 * batch * s**2 * h, 2 * batch * s * shape.vocabulary * h
    whole = {
        recompute: throughput.step_tflop(shape, batch=batch, gpus=1, recompute=recompute) for recompute in (True, False)
    }
    assert whole[True] == pytest.approx((4 * shape.layers * layer + 3 * output) / 1e12)
    assert whole[False] == pytest.approx((3 * shape.layers * layer + 3 * output) / 1e12)


def test_accelerators_compare_as_in_the_book() -> None:
    v100, a100, h100 = (accelerator(name) for name in ("V100", "A100", "H100"))
    assert round(a100.tflops / v100.tflops, 1) == 2.5
    assert round(h100.tflops / v100.tflops) == 8
    assert round(h100.tflops / a100.tflops) == 3
    assert [2 * gpu.link_gb_s for gpu in (v100, a100, h100)] == [300, 600, 900]  # the book counts both ways


def test_bloom_used_half_of_its_a100s() -> None:
    used = throughput.speed(PUBLISHED["bloom"], batch=2048, seconds=105, gpus=384, peak=312, recompute=True)
    assert used.hfu and used.mfu
    assert used.hfu == pytest.approx(0.48, abs=0.005)
    assert used.mfu / used.hfu == pytest.approx(0.75, abs=0.01)


def test_plan_and_trainer_know_the_same_peaks() -> None:
    assert {name: gpu.tflops for name, gpu in ACCELERATORS.items()} == {
        name: peak_tflops(f"NVIDIA {name}") for name in ACCELERATORS
    }


def test_peaks_exclude_sparsity() -> None:
    peaks = {name: accelerator.tflops for name, accelerator in ACCELERATORS.items()}
    assert {name: peaks[name] for name in ("V100", "A100", "H100", "H200", "MI250X", "MI300X")} == {
        "V100": 125,
        "A100": 312,
        "H100": 989.4,
        "H200": 989.4,
        "MI250X": 191.5,
        "MI300X": 1307.4,
    }


def test_unknown_accelerator_lists_the_known_ones() -> None:
    assert accelerator("h100-pcie").tflops == 756
    with pytest.raises(InputError, match="gpu: 'A1000' is not known"):
        accelerator("A1000")


def test_time_left_without_a_limit_is_the_time_of_the_steps() -> None:
    remaining = time_left(steps=100, step_s=36)
    assert (remaining.likely, remaining.early, remaining.late, remaining.attempts) == (HOUR, HOUR, HOUR, 0)


def test_later_tasks_add_start_up_and_waits() -> None:
    # 45 h of steps in tasks of 20 h with a start-up of half an hour: two more tasks after the running one
    remaining = time_left(steps=1620, step_s=100, attempt_s=20 * HOUR, start_up_s=HOUR / 2, waits_s=[HOUR, 3 * HOUR])
    assert remaining.training == 45 * HOUR
    assert remaining.attempts == 2
    assert remaining.likely == (45 + 2 * 0.5 + 2 * 2) * HOUR
    assert remaining.early < remaining.likely < remaining.late
    assert remaining.early >= (45 + 1 + 2) * HOUR


def test_two_waits_spread_by_root_two() -> None:
    remaining = time_left(steps=45, step_s=HOUR, attempt_s=20 * HOUR, waits_s=[3 * HOUR, 5 * HOUR])
    spread = 1.28155 * 2**0.5 * HOUR
    assert remaining.early == pytest.approx((45 + 8) * HOUR - spread, rel=1e-5)
    assert remaining.late == pytest.approx((45 + 8) * HOUR + spread, rel=1e-5)


def test_finished_train_has_nothing_left() -> None:
    assert time_left(steps=0, step_s=1, attempt_s=HOUR, waits_s=[HOUR]).late == 0


def test_task_must_last_longer_than_its_start_up() -> None:
    with pytest.raises(InputError, match=r"a task of 60 s ends before its start-up of 60 s does"):
        time_left(steps=1, step_s=1, attempt_s=60, start_up_s=60)
