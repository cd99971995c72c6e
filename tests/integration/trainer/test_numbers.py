"""Schedules, the order of samples, the turns of corpora, sizes and operations: pure arithmetic."""

import math
from collections import Counter
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.trainer.blend import Mixture
from opsctl.trainer.config_tables import is_due
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import model_parameters, step_flops
from opsctl.trainer.run_state import RunState
from opsctl.trainer.sample_order import SampleOrder, permute


def test_due():
    assert [step for step in range(10) if is_due(step, 3)] == [3, 6, 9]
    assert not any(is_due(step, 0) for step in range(10))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 1025])
def test_epoch_is_a_permutation(size):
    order = SampleOrder(samples=size, seed=1234)
    for epoch in (0, 1, 5):
        assert sorted(order.sample(epoch * size + n) for n in range(size)) == list(range(size))


def test_epochs_and_seeds_have_different_orders():
    def epoch(seed, number):
        order = SampleOrder(samples=1000, seed=seed)
        return [order.sample(number * 1000 + n) for n in range(1000)]

    assert epoch(1, 0) != epoch(1, 1) != epoch(2, 1)
    assert sum(place == sample for place, sample in enumerate(epoch(1, 0))) < 10
    ascents = sum(a < b for a, b in zip(epoch(1, 0), epoch(1, 0)[1:], strict=False))
    assert 430 < ascents < 570


def test_samples_spread_evenly():
    """Over many keys, sample 0 lands in every eighth of the epoch equally often."""
    places = Counter(permute(0, 1000, key=key) // 125 for key in range(4000))
    assert all(abs(count - 500) < 5 * math.sqrt(500) for count in places.values())


PINNED = [2, 5, 3, 1, 4, 6, 0, 9, 7, 8, 6, 7, 9, 5, 1, 0, 3, 2, 4, 8]


def test_order_of_samples_never_changes():
    """The order is pinned: another order would repeat and drop samples of a resumed run."""
    order = SampleOrder(samples=10, seed=1234)
    assert [order.sample(n) for n in range(20)] == PINNED


def test_sizes_of_gpt2():
    small = ModelConfig(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    assert model_parameters(small) == 124_439_808  # as published for GPT-2
    plain, again = step_flops(small, batch=1), step_flops(small, batch=1, recompute=True)
    assert 1.2 < again / plain < 4 / 3
    weights, attention = 12 * 12 * 768**2 + 50257 * 768, 12 * 12 * 768 * 1024
    assert plain == pytest.approx(1024 * (6 * weights + attention))  # tokens x 6 operations a weight, and attention


def test_first_step_time_is_replaced_by_the_second():
    state = RunState(slowest_step_s=3.0)
    slowest = []
    for seconds in (60.0, 2.0, 5.0, 4.0):
        state.advance(samples=8, loss=1.0, grad_norm=1.0, step_s=seconds)
        slowest.append(state.slowest_step_s)
    assert slowest == [60.0, 2.0, 5.0, 5.0]
    assert (state.step, state.consumed_samples) == (4, 32)


WEIGHTS = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=50)
LANGUAGES = [0.75**number for number in range(46)]
"""As the shares of 46 languages: the smallest is two in a million of the largest."""


def find_largest_deviation(weights, samples):
    counts = Mixture(weights).counts(samples)
    shares = (samples * weight / sum(weights) for weight in weights)
    return max(abs(count - share) for count, share in zip(counts, shares, strict=True))


@given(weights=WEIGHTS, samples=st.integers(0, 10**9))
def test_no_corpus_deviates_by_two_samples(weights, samples):
    assert sum(Mixture(weights).counts(samples)) == samples
    assert find_largest_deviation(weights, samples) < 2


@given(weights=WEIGHTS, first=st.integers(0, 10**9))
def test_places_and_counts_agree(weights, first):
    mixture = Mixture(weights)
    counts = mixture.counts(first)
    for position in range(first, first + 30):
        corpus, index = mixture.place(position)
        assert index == counts[corpus]
        counts[corpus] += 1
    assert counts == mixture.counts(first + 30)


@pytest.mark.parametrize("samples", [1000, 100_000, 2_000_000])
def test_mix_of_46_languages_is_exact(samples):
    assert find_largest_deviation(LANGUAGES, samples) < 1.5


def test_equal_weights_take_turns():
    corpora = [Mixture([1.0, 1.0]).place(position)[0] for position in range(100)]
    assert all(one != other for one, other in pairwise(islice(corpora, 100)))
