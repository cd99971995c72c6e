"""Shapes from the config.json of Hugging Face. `pytest tests/unit/calc/test_hf_config.py`"""

import json
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.calc.gpt_size import PUBLISHED, ModelShape, active_parameters, parameters, shape_of_sizes
from opsctl.calc.hf_config import read_config
from opsctl.trainer.checkpoint.transformers_config import read_model
from tests.support.cases import read_cases, read_table
from tests.support.published_rows import shape_of_size

LLAMA = read_table(__file__, "llama")
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 48,
    "n_embd": 1600,
    "n_head": 25,
    "vocab_size": 50257,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "n_inner": None,
}
DEEPSEEK = read_table(__file__, "deepseek")
GEMMA = read_table(__file__, "gemma")


def shape(config: dict[str, object]) -> ModelShape:
    return read_config(config, sequence=4096)[0]


@pytest.mark.parametrize(
    ("config", "billions"),
    [(LLAMA, 8.03), (GPT2, 1.56), (DEEPSEEK, 671.0), (GEMMA, 9.24)],
    ids=lambda value: str(value)[:30],
)
def test_configuration_has_its_published_size(config: dict[str, object], billions: float) -> None:
    assert parameters(shape(config)) / 1e9 == pytest.approx(billions, rel=0.005)


BLOOM_560M = {"model_type": "bloom", "n_layer": 24, "n_embed": 1024, "num_attention_heads": 16, "vocab_size": 250880}
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 32,
    "intermediate_size": 512,
    "vocab_size": 256,
    "hidden_act": "silu",
}


@pytest.mark.parametrize(
    "config",
    [LLAMA, GPT2, BLOOM_560M, *(SIZES | {"model_type": kind} for kind in ("llama", "mistral", "qwen2", "qwen3"))],
    ids=lambda config: f"{config['model_type']} with {len(config)} keys",
)
def test_plan_and_trainer_read_the_same_model(config: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    planned, imported = read_config(config)[0], read_model(tmp_path, sequence=1024)
    assert (planned.layers, planned.hidden, planned.heads, planned.groups, planned.head_size, planned.width) == (
        imported.layers,
        imported.hidden,
        imported.heads,
        imported.group_count,
        imported.width_of_head,
        imported.width_of_ffn,
    )


def test_configuration_equals_the_preset() -> None:
    preset = PUBLISHED["deepseek-v3"]
    assert parameters(shape(DEEPSEEK)) == parameters(preset)
    assert active_parameters(shape(DEEPSEEK)) == active_parameters(preset)


def test_long_context_is_assumed_shorter_and_said() -> None:
    model, assumed = read_config(LLAMA)
    assert model.sequence == 8192
    assert assumed == ("sequence 8192 (the model allows 131072)",)


def test_window_of_every_second_layer_is_read() -> None:
    assert (shape(GEMMA).window, shape(GEMMA).windowed) == (4096, 0.5)


def test_configuration_inside_text_config_is_read() -> None:
    assert parameters(shape({"model_type": "gemma3", "text_config": LLAMA})) == parameters(shape(LLAMA))


def test_configuration_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match=r"config.json: num_hidden_layers, vocab_size not there"):
        read_config({"hidden_size": 64, "num_attention_heads": 1})


@pytest.mark.parametrize(*read_cases(__file__, "preset_has_its_published_size"))
def test_preset_has_its_published_size(name: str, billions: float) -> None:
    assert parameters(PUBLISHED[name]) / 1e9 == pytest.approx(billions, rel=0.001)


def test_layers_and_hidden_give_llama_70b_and_say_the_rest() -> None:
    guessed, assumed = shape_of_sizes(80, 8192)
    assert parameters(guessed) == parameters(PUBLISHED["llama-3-70b"])
    assert any("gated feed-forward part of 28672" in line for line in assumed)


@pytest.mark.parametrize("billions", [0.5, 3, 34, 180])
def test_shape_of_a_size_is_near_the_size(billions: float) -> None:
    assert parameters(shape_of_size(billions, vocabulary=128256)) / 1e9 == pytest.approx(billions, rel=0.1)
