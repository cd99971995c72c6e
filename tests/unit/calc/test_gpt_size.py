"""Model sizes against the figures of the documents. `pytest tests/unit/calc/test_gpt_size.py`"""

import pytest

from opsctl.base.errors import InputError
from opsctl.calc.gpt_size import (
    PUBLISHED,
    ModelShape,
    block_parameters,
    embedding_parameters,
    parameters,
)
from tests.support.cases import read_cases


def shape(layers: int, hidden: int, *, vocabulary: int = 50257) -> ModelShape:
    return ModelShape(layers=layers, hidden=hidden, heads=1, vocabulary=vocabulary)


@pytest.mark.parametrize(*read_cases(__file__, "shape_has_the_documented_billions"))
def test_shape_has_the_documented_billions(layers: int, hidden: int, vocabulary: int, billions: int) -> None:
    assert round(parameters(shape(layers, hidden, vocabulary=vocabulary)) / 1e9) == billions


@pytest.mark.parametrize(*read_cases(__file__, "sizes_of_hung_runs_count_the_layers_only"))
def test_sizes_of_hung_runs_count_the_layers_only(layers: int, hidden: int, billions: int) -> None:
    assert layers * block_parameters(shape(layers, hidden)) / 1e9 == pytest.approx(billions, rel=0.015)


def test_bloom_has_the_published_parameters() -> None:
    assert parameters(PUBLISHED["bloom"]) == 176_247_271_424


def test_layer_and_embedding_of_the_104b() -> None:
    assert block_parameters(shape(64, 11600)) == 1_614_870_800
    assert embedding_parameters(shape(64, 11600)) == 582_981_200
    assert (1_614_870_800 / 4, 582_981_200 / 4) == (403_717_700, 145_745_300)


def test_embedding_of_the_206b_is_as_large_as_a_layer() -> None:
    wide = shape(96, 13312, vocabulary=150257)
    assert embedding_parameters(wide) == 2_000_221_184 == 4 * 500_055_296
    assert embedding_parameters(wide) / block_parameters(wide) == pytest.approx(1, abs=0.1)


def test_all_problems_of_a_shape_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ModelShape(layers=0, hidden=-1, heads=1, vocabulary=10)
    assert caught.value.message == (
        "model: 2 problems\n  layers is 0, needs to be above 0\n  hidden is -1, needs to be above 0"
    )


def test_hidden_must_divide_by_the_heads() -> None:
    with pytest.raises(InputError, match="hidden 100 does not divide by 3 heads"):
        ModelShape(layers=1, hidden=100, heads=3, vocabulary=10)
