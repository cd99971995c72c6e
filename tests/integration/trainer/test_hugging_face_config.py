"""The config.json of models of transformers: read, refused, and written again."""

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers

from opsctl.trainer.checkpoint.transformers_config import read_model, write_config
from opsctl.trainer.errors import Refused
from tests.support.cases import read_cases
from tests.support.transformers_models import MODELS, save_model

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(*read_cases(__file__, "what_the_trainer_cannot_do_is_refused"))
def test_what_the_trainer_cannot_do_is_refused(tmp_path, name, changes, words):
    save_model(name, tmp_path, **changes)
    with pytest.raises(Refused, match=words):
        read_model(tmp_path)


def test_window_of_an_absent_key_is_that_of_transformers(tmp_path):
    save_model("qwen2", tmp_path, use_sliding_window=True, max_window_layers=0)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"], config["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path).window == 4096


DEFAULTS = {
    "llama": (("num_key_value_heads", 4), ("rms_norm_eps", 1e-6), ("max_position_embeddings", 2048), ("head_dim", 8)),
    "mistral": (("num_key_value_heads", 8), ("max_position_embeddings", 131072)),
    "qwen2": (("num_key_value_heads", 32), ("max_position_embeddings", 32768), ("rms_norm_eps", 1e-6)),
    "qwen3": (("head_dim", 128), ("max_position_embeddings", 32768)),
    "gpt2": (("n_positions", 1024),),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_absent_keys_have_the_defaults_of_transformers(tmp_path, name):
    kind, fields = MODELS[name]
    defaults = dict(DEFAULTS[name])
    sizes = {"num_attention_heads": 32, "hidden_size": 64} if name in {"mistral", "qwen2"} else {}
    getattr(transformers, kind)(**fields | sizes | defaults).save_pretrained(tmp_path)
    whole = read_model(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in written.items() if k not in defaults}))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert {key: getattr(theirs, key) for key in defaults} == defaults
    assert read_model(tmp_path) == whole


@pytest.mark.parametrize(*read_cases(__file__, "two_settings_of_positions_must_agree"))
def test_two_settings_of_positions_must_agree(tmp_path, scaling, parameters, agree):
    save_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling, "rope_parameters": parameters}))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    if agree:
        assert read_model(tmp_path).theta == theirs["rope_theta"]
        return
    with pytest.raises(Refused, match="rope_scaling and rope_parameters differ"):
        read_model(tmp_path)


@pytest.mark.parametrize(*read_cases(__file__, "unreadable_config_of_a_model_is_refused"))
def test_unreadable_config_of_a_model_is_refused(tmp_path, content, words):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(Refused, match=words):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["mistral", "llama3-tied", "gemma3", "smollm3", "bloom"])
def test_export_states_what_import_took(tmp_path, name):
    """Type and longest sequence of the first model, though samples are shorter and the vocabulary is larger."""
    save_model(name, tmp_path)
    config = read_model(tmp_path, sequence=32)
    first = json.loads((tmp_path / "config.json").read_text())
    longest = config.kind.config["sequence"]
    assert (first[longest], write_config(config)[longest]) == (64, 32)
    relative = config.model_copy(update={"vocabulary": 272})
    if name == "mistral":  # a table of a version that knew Mistral as a Llama
        relative = relative.model_copy(update={"family": "llama"})
    fields = write_config(relative, like=first)
    kept = {"model_type", "architectures", "initializer_range", longest}
    assert {key: fields[key] for key in kept} == {key: first[key] for key in kept}
    assert "transformers_version" not in fields
    other = write_config(relative.model_copy(update={"layers": 1}), like=first)
    assert other[longest] == 32  # of another model, nothing is taken
    assert "initializer_range" not in other
