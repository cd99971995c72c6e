"""The ramp-up of the batch size, and refused ramps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import BatchConfig
from opsctl.trainer.rank_layout import check_layout
from tests.support.cases import read_cases


def make_config(**tables) -> TrainerConfig:
    return TrainerConfig.model_validate({"steps": 100, **tables})


RAMPS = st.builds(
    lambda start, increment, increments, samples: BatchConfig(
        micro_batch=1, global_batch=start + increment * increments, rampup=[start, increment, samples]
    ),
    start=st.integers(1, 64),
    increment=st.integers(1, 32),
    increments=st.integers(0, 8),
    samples=st.integers(8, 5000),
)


def batch_of_megatron(batch: BatchConfig, consumed: int) -> int:
    """Return the batch size of Megatron-LM's RampupBatchsizeNumMicroBatches.update, in its floating point."""
    start, increment, samples = batch.rampup
    increments = (batch.global_batch - start) // increment
    if increments == 0 or consumed > samples:
        return batch.global_batch
    return start + int(consumed / (samples / increments)) * increment


@given(ramp=RAMPS, consumed=st.integers(0, 6000))
def test_batch_equals_that_of_megatron(ramp, consumed):
    assert ramp.at(consumed) == batch_of_megatron(ramp, consumed)


@given(ramp=RAMPS, steps=st.integers(0, 300))
def test_samples_of_a_run_are_the_sum_of_its_steps(ramp, steps):
    consumed = 0
    for _ in range(steps):
        consumed += ramp.at(consumed)
    assert ramp.consumed(steps) == consumed


@given(ramp=RAMPS, steps=st.integers(0, 100))
def test_every_batch_size_is_among_the_checked_sizes(ramp, steps):
    consumed, sizes = 0, set(ramp.sizes())
    for _ in range(steps):
        assert ramp.at(consumed) in sizes
        consumed += ramp.at(consumed)


def test_ramp_of_the_104b_run_is_reproduced():
    """--rampup-batch-size 16 16 6_000_000 --global-batch-size 2048."""
    ramp = make_config(batch={"micro_batch": 1, "global_batch": 2048, "rampup": [16, 16, 6_000_000]}).batch
    assert len(ramp.sizes()) == 128
    assert [ramp.at(n) for n in (0, 47_244, 47_245, 6_000_000, 10**9)] == [16, 16, 32, 2048, 2048]


def test_decay_ends_with_the_last_step():
    config = make_config(batch={"global_batch": 16, "rampup": [2, 2, 70]}, optimizer={"min_lr": 1e-5})
    assert config.samples() == config.batch.consumed(100) < 1600
    assert config.rate().at(config.samples()) == pytest.approx(1e-5)


RATES = {
    "cosine": [1.0, 0.5, 0.0],
    "linear": [1.0, 0.5, 0.0],
    "wsd": [1.0, 1.0, 0.0],
    "inverse-square-root": [1.0, (160 / 880) ** 0.5, 0.1**0.5],
    "constant": [1.0, 1.0, 1.0],
}
"""The rates at the end of a warm-up of 160 samples, in the middle of the rest, and at the end of 1,600."""


def make_rate(decay, **keys):
    keys |= {"wsd": {"anneal_samples": 320}, "cosine-restarts": {"periods": 3}}.get(decay, {})
    return make_config(optimizer={"lr": 1.0, "decay": decay, "warmup_samples": 160, **keys}).rate()


@pytest.mark.parametrize("decay", RATES)
def test_rate_has_the_heights_of_its_decay(decay):
    rate = make_rate(decay)
    assert [rate.at(samples) for samples in (160, 880, 1600)] == pytest.approx(RATES[decay], abs=1e-12)
    assert rate.at(80) == 0.5


def test_wsd_falls_linearly_over_its_last_samples():
    rate = make_rate("wsd", min_lr=0.2)
    assert [rate.at(samples) for samples in (1280, 1440, 1600, 2000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_restart_begins_at_the_peak():
    rate = make_rate("cosine-restarts")
    heights = [rate.at(samples) for samples in (160, 400, 639, 640, 880, 1120, 1600)]
    assert heights == pytest.approx([1.0, 0.5, 0.0, 1.0, 0.5, 1.0, 0.0], abs=1e-4)


def test_no_rate_rises_after_its_warmup_but_by_a_restart():
    for decay in RATES:
        rates = [make_rate(decay).at(samples) for samples in range(160, 1700)]
        assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(*read_cases(__file__, "impossible_decay_is_refused"))
def test_impossible_decay_is_refused(keys, words):
    with pytest.raises(ValidationError, match=words):
        make_config(optimizer=keys)


@pytest.mark.parametrize(*read_cases(__file__, "impossible_ramp_is_refused"))
def test_impossible_ramp_is_refused(batch, words):
    with pytest.raises(ValidationError, match=words):
        make_config(batch=batch)


def test_ramp_must_be_divisible_at_every_step():
    (problem,) = check_layout(make_config(batch={"rampup": [4, 2, 100]}), 2)
    assert problem == (
        "rampup = [4, 2, 100] has batches of 6, 10, 14, which are not multiples of micro_batch x data-parallel ranks = "
        "2 x 2 = 4"
    )
    (problem,) = check_layout(make_config(batch={"rampup": [4, 1, 100], "micro_batch": 4}), 1)
    assert "5, 6, 7, 9, 10 and 4 more" in problem
    assert check_layout(make_config(batch={"rampup": [4, 4, 100]}), 2) == []


@pytest.mark.parametrize("text", ["5", "7-3", "a-b", "-3", "1-2-3"])
def test_invalid_range_of_samples_is_refused(text):
    with pytest.raises(ValidationError, match="is not a range of samples A-B with A up to B"):
        make_config(data={"skip_samples": [text]})


def test_adjacent_ranges_of_samples_are_merged():
    skipped = make_config(data={"skip_samples": ["20-20", "3-5", "6-9", "4-7"]}).data.skipped()
    assert skipped == [range(3, 10), range(20, 21)]
