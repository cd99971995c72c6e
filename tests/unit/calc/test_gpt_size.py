"""Model sizes against the figures of the documents. `pytest tests/unit/calc/test_gpt_size.py`"""

import pytest

from opsctl.base.errors import InputError
from opsctl.calc.gpt_size import (
    PUBLISHED,
    ModelShape,
    approximate_parameters,
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


def test_145b_of_the_size_table_is_146b() -> None:
    """The size table says 145B; the formula of the prequel gives 146B."""
    assert parameters(shape(80, 12288)) == 145_610_674_176
    assert approximate_parameters(shape(80, 12288)) == 145_610_674_176 - 2 * 12288


def test_530b_shape_is_530b() -> None:
    """The prequel repeats the line of the 310B below the 530B."""
    assert round(parameters(shape(105, 20480)) / 1e9) == 530
    assert round(shape(105, 20480).ratio) == 195
    assert round(parameters(shape(96, 16384)) / 1e9) == 310
    assert int(shape(96, 16384).ratio) == 170


@pytest.mark.parametrize(*read_cases(__file__, "ratio_is_hidden_over_layers"))
def test_ratio_is_hidden_over_layers(layers: int, hidden: int, ratio: int) -> None:
    assert int(shape(layers, hidden).ratio) == ratio


def test_ratio_of_the_104b_is_181() -> None:
    """The size table says 180."""
    assert shape(64, 11600).ratio == 181.25


def test_size_table_rounds_the_ratios() -> None:
    """The formula of the size table truncates; the printed ratios are rounded."""
    for layers, hidden, cut, rounded in ((80, 12288, 153, 154), (96, 13312, 138, 139)):
        assert (int(shape(layers, hidden).ratio), round(shape(layers, hidden).ratio)) == (cut, rounded)


@pytest.mark.parametrize(*read_cases(__file__, "sizes_of_hung_runs_count_the_layers_only"))
def test_sizes_of_hung_runs_count_the_layers_only(layers: int, hidden: int, billions: int) -> None:
    assert layers * block_parameters(shape(layers, hidden)) / 1e9 == pytest.approx(billions, rel=0.015)


def test_bloom_has_the_published_parameters() -> None:
    assert parameters(PUBLISHED["bloom"]) == 176_247_271_424


def test_formulas_differ_by_the_final_norm_only() -> None:
    for model_shape in PUBLISHED.values():
        if model_shape.positions:
            assert parameters(model_shape) - approximate_parameters(model_shape) == 2 * model_shape.hidden


def test_layer_and_embedding_of_the_104b() -> None:
    assert block_parameters(shape(64, 11600)) == 1_614_870_800
    assert embedding_parameters(shape(64, 11600)) == 582_981_200
    assert (1_614_870_800 / 4, 582_981_200 / 4) == (403_717_700, 145_745_300)


def test_embedding_of_the_206b_is_as_large_as_a_layer() -> None:
    wide = shape(96, 13312, vocabulary=150257)
    assert embedding_parameters(wide) == 2_000_221_184 == 4 * 500_055_296
    assert embedding_parameters(wide) / block_parameters(wide) == pytest.approx(1, abs=0.1)


def test_layer_of_the_206b_is_not_a_quarter() -> None:
    # "12*h**2 + 13*h: 2_126_685_184 / 4 (TP=4)  => 531_671_296", and then "4*531_671_296" for four layers
    wide = shape(96, 13312, vocabulary=150257)
    assert block_parameters(wide) == 2_126_685_184
    assert block_parameters(wide) // 4 == 531_671_296
    assert block_parameters(wide) * 18 == 4 * 531_671_296 * 18 == 38_280_333_312
    assert (block_parameters(wide) / 2, block_parameters(wide) / 2 * 18) == (1_063_342_592, 19_140_166_656)


def test_all_problems_of_a_shape_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        ModelShape(layers=0, hidden=-1, heads=1, vocabulary=10)
    assert caught.value.message == (
        "model: 2 problems\n  layers is 0, needs to be above 0\n  hidden is -1, needs to be above 0"
    )


def test_hidden_must_divide_by_the_heads() -> None:
    with pytest.raises(InputError, match="hidden 100 does not divide by 3 heads"):
        ModelShape(layers=1, hidden=100, heads=3, vocabulary=10)
