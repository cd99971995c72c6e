"""Bytes per GPU against the figures of the documents. `pytest tests/unit/calc/test_gpu_memory.py`"""

from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.gpt_size import PUBLISHED, ModelShape, block_parameters, embedding_parameters
from opsctl.calc.parallel_layout import Topology, layers_of_stages
from tests.support.cases import read_cases
from tests.support.published_rows import BLOOM

SMALL = PUBLISHED["104b"]
ONE = Topology(tp=4, pp=32, dp=1)


def count_bytes(name: str) -> int:
    kind = gpu_memory.PRECISIONS[name]
    return kind.weights + kind.gradients + kind.optimizer


def test_mixed_precision_with_adam_is_18_bytes_a_parameter() -> None:
    assert count_bytes("bf16") == 18
    assert sum(gpu_memory.states_bytes(ONE)) == 18


def test_104b_takes_17_gb_with_the_embedding_and_15_without() -> None:
    first, second, *_ = gpu_memory.stages(SMALL, ONE, batch=2048)
    assert (first.parameters, second.parameters) == (953_180_700, 807_435_400)
    assert first.states == 17_157_252_600
    assert second.states == 14_533_837_200


def test_104b_leaves_4_or_2_gb_for_activations() -> None:
    first, second, *_ = gpu_memory.stages(SMALL, ONE, batch=2048)
    on_a_v100 = 1271 * 2**20
    assert 22 - (first.states + on_a_v100) / 1e9 == pytest.approx(3.5, abs=0.05)  # the prequel says 4
    assert 18 - (second.states + on_a_v100) / 1e9 == pytest.approx(2.1, abs=0.05)


def test_199b_leaves_28_gb_for_activations() -> None:
    shape = ModelShape(layers=80, hidden=14336, heads=64, vocabulary=150257)
    first, second, *_ = gpu_memory.stages(shape, Topology(tp=8, pp=10, dp=4, zero=0), batch=2048)
    assert (second.states / 1e9, first.states / 1e9) == (pytest.approx(44, abs=0.5), pytest.approx(50, abs=1))
    assert 80 - 2 - 50 == 28
    assert (Topology(tp=8, pp=10, dp=4).gpus, Topology(tp=8, pp=12, dp=4).gpus) == (320, 384)


def test_94_layers_and_two_slots_are_four_on_each_of_24_stages() -> None:
    shape = ModelShape(layers=94, hidden=13312, heads=64, vocabulary=150257)
    assert layers_of_stages(shape, Topology(tp=4, pp=24, dp=4, embedding_slots=True)) == [3, *[4] * 22, 3]


def test_fp32_gradients_take_4_more_bytes_a_parameter() -> None:
    """ZeRO does not shard the accumulated gradients."""
    kinds = {name: gpu_memory.states_bytes(replace(BLOOM, precision=name)) for name in ("fp16", "bf16-optimizer")}
    assert kinds["bf16-optimizer"][1] - kinds["fp16"][1] == 4


def test_fp32_with_adam_is_16_bytes_a_parameter() -> None:
    assert count_bytes("fp32") == 4 + 4 + 8


def test_last_stage_holds_tied_embedding_and_logits() -> None:
    first, *_, last = gpu_memory.stages(SMALL, ONE, batch=2048)
    assert last.parameters == first.parameters
    assert last.output == 2048 * 50257 / 4 * 6
    assert first.output == 0


@pytest.mark.parametrize(*read_cases(__file__, "eighth_has_the_bytes_of_the_prequel"))
def test_eighth_has_the_bytes_of_the_prequel(
    hidden: int, vocabulary: int, embedding_mb: float, block_mb: float
) -> None:
    shape = ModelShape(layers=1, hidden=hidden, heads=1, vocabulary=vocabulary)
    assert embedding_parameters(shape) * 18 / 8 / 1e6 == pytest.approx(embedding_mb, abs=0.01)
    assert block_parameters(shape) * 18 / 8 / 1e6 == pytest.approx(block_mb, abs=0.01)


@pytest.mark.parametrize(*read_cases(__file__, "whole_model_has_the_millions_of_the_prequel"))
def test_whole_model_has_the_millions_of_the_prequel(
    hidden: int, vocabulary: int, embedding: list[float], block: list[float]
) -> None:
    shape = ModelShape(layers=1, hidden=hidden, heads=1, vocabulary=vocabulary)
    for count, printed in ((embedding_parameters(shape), embedding), (block_parameters(shape), block)):
        assert (count / 1e6, count * 18 / 1e6) == (
            pytest.approx(printed[0], abs=5e-3),
            pytest.approx(printed[1], abs=5e-3),
        )


@pytest.mark.parametrize(
    ("hidden", "layers", "gigabytes"), [(12288, 10, 40), (16384, 6, 44), (20480, 3, 34), (14336, 8, 44)]
)
def test_layers_of_a_stage_take_half_a_gpu(hidden: int, layers: int, gigabytes: int) -> None:
    # For the 530B the prequel prints "6*7.3 = ~33.9GB": the 310B's factors, and the right result of 3 x 11.3.
    shape = ModelShape(layers=1, hidden=hidden, heads=1, vocabulary=50257)
    assert layers * block_parameters(shape) * 18 / 8 / 1e9 == pytest.approx(gigabytes, rel=0.025)


def test_zero_shards_optimizer_then_gradients_then_weights() -> None:
    by_stage = [gpu_memory.states_bytes(replace(BLOOM, precision="bf16", zero=zero)) for zero in range(4)]
    assert by_stage == [(2, 4, 12), (2, 4, 1.5), (2, 0.5, 1.5), (0.5, 0.5, 1)]


def test_recomputation_stores_one_input_a_layer() -> None:
    recomputed = gpu_memory.fullest(PUBLISHED["bloom"], BLOOM, batch=2048)
    without = gpu_memory.fullest(PUBLISHED["bloom"], replace(BLOOM, recompute="none"), batch=2048)
    assert recomputed.activations < 10 * gpu_memory.GIB < 80 * gpu_memory.GIB < without.activations


def test_activations_of_a_layer_match_the_paper() -> None:
    gpt3 = PUBLISHED["gpt-3"]  # sbh(34 + 5as/h) = 34 + 80 of 2048 x 12288
    alone = gpu_memory.layer_activation_bytes(gpt3, Topology(tp=1, pp=1, dp=1, attention="unfused"))
    assert alone / (gpt3.sequence * gpt3.hidden) == pytest.approx(34 + 80)


def test_first_stage_is_the_fullest() -> None:
    assert gpu_memory.fullest(PUBLISHED["bloom"], BLOOM, batch=2048).stage == 0


def test_small_batch_leaves_the_pipeline_emptier() -> None:
    full, small = (gpu_memory.fullest(PUBLISHED["bloom"], BLOOM, batch=batch).activations for batch in (2048, 16))
    assert small < full / 3


def test_78_layers_leave_one_for_the_last_of_12_stages() -> None:
    shape = ModelShape(layers=78, hidden=13824, heads=64, vocabulary=250880)
    assert layers_of_stages(shape, Topology(tp=4, pp=12, dp=8)) == [7] * 11 + [1]


def test_70_layers_and_two_slots_are_even_on_12_stages() -> None:
    assert layers_of_stages(PUBLISHED["bloom"], BLOOM) == [5, *[6] * 10, 5]


def test_stage_without_layers_has_zero_layers() -> None:
    few = ModelShape(layers=5, hidden=64, heads=1, vocabulary=100)
    assert layers_of_stages(few, Topology(tp=1, pp=6, dp=1, embedding_slots=True)) == [1, 2, 2, 0, 0, 0]


def test_single_stage_takes_all_layers() -> None:
    for slots in (False, True):
        assert layers_of_stages(SMALL, Topology(tp=1, pp=1, dp=1, embedding_slots=slots)) == [64]


def test_unknown_precision_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        gpu_memory.states_bytes(replace(ONE, precision="int8"))
    assert caught.value.message == "precision: 'int8' is not known"
    assert caught.value.hint == "known: fp32, fp16, bf16, bf16-optimizer, bf16-pure, fp8, fp4"
