"""The turns of corpora in a blend: exact at any weight, a pure function of the position."""

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.trainer.blend import Mixture

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
