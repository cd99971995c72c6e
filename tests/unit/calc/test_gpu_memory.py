"""Bytes per GPU against the figures of the documents. `pytest tests/unit/calc/test_gpu_memory.py`"""

from dataclasses import replace
from typing import Any

import pytest

from opsctl.base.errors import InputError
from opsctl.calc import gpu_memory
from opsctl.calc.gpt_size import PUBLISHED, ModelShape, block_parameters, embedding_parameters, parameters
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


def test_zero_shards_optimizer_then_gradients_then_weights() -> None:
    by_stage = [gpu_memory.states_bytes(replace(BLOOM, precision="bf16", zero=zero)) for zero in range(4)]
    assert by_stage == [(2, 4, 12), (2, 4, 1.5), (2, 0.5, 1.5), (0.5, 0.5, 1)]


LLAMA = PUBLISHED["llama-3-8b"]
FSDP = Topology(tp=1, pp=1, dp=16, zero=3, micro_batch=2)


def test_accumulation_without_synchronisation_keeps_whole_gradients() -> None:
    """As accelerate's FSDP does: 4 bytes of every parameter on every GPU, from the second micro batch on."""
    for batch, more in ((32, 0), (64, 4 * parameters(LLAMA))):
        plain, whole = (
            gpu_memory.fullest(LLAMA, replace(FSDP, accumulates_whole=whole), batch=batch) for whole in (False, True)
        )
        assert whole.gathered - plain.gathered == pytest.approx(more, rel=0.001)


def test_gradients_in_16_bits_take_half() -> None:
    whole, half = (gpu_memory.states_bytes(replace(ONE, gradients_16=short)) for short in (False, True))
    assert (half[0], half[1], half[2]) == (whole[0], whole[1] / 2, whole[2])


@pytest.mark.parametrize(*read_cases(__file__, "logit_has_the_bytes_of_its_loss"))
def test_logit_has_the_bytes_of_its_loss(options: dict[str, Any], size: int) -> None:
    topology = replace(FSDP, **{"zero": 1} | options)
    logits = gpu_memory.logits_bytes(LLAMA, topology) / topology.tokens(LLAMA.sequence) / LLAMA.vocabulary
    assert logits == size


def test_recomputed_operations_free_two_thirds() -> None:
    stored = {
        kind: gpu_memory.activation_bytes(LLAMA, replace(FSDP, recompute=kind), layers=32, in_flight=1, freed=1e18)
        for kind in ("none", "operations", "full")
    }
    assert stored["operations"] == pytest.approx(0.35 * stored["none"] + 0.65 * stored["full"])


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
