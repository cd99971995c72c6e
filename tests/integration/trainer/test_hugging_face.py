"""Weights of real models of transformers: read, trained on, and written, with the same logits."""

import json
import math
import re
import shutil
import tomllib

import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import torch
import transformers
from safetensors import torch as safetensors

from opsctl.trainer import gpt
from opsctl.trainer.architecture import layers
from opsctl.trainer.batches import open_data
from opsctl.trainer.checkpoint.__main__ import main
from opsctl.trainer.checkpoint.export import compare, kind_of
from opsctl.trainer.checkpoint.transformers_config import read_model, write_config
from opsctl.trainer.checkpoint.transformers_names import from_transformers, to_transformers
from opsctl.trainer.checkpoint.transformers_weights import load_weights
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice
from tests.support.cases import read_cases, read_table
from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

LLAMA, LLAMA3 = (read_table(__file__, name) for name in ("llama", "llama3_positions"))
MODELS = {
    "llama": ("LlamaConfig", LLAMA),
    "llama3-tied": ("LlamaConfig", LLAMA | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", LLAMA | {"head_dim": 12, "sliding_window": None}),
    "qwen2": ("Qwen2Config", LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("Qwen3Config", LLAMA | {"head_dim": 16}),
    "gpt2": ("GPT2Config", {"vocab_size": 264, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "bloom": ("BloomConfig", {"vocab_size": 264, "hidden_size": 32, "n_layer": 2, "n_head": 4, "seq_length": 64}),
}
MAX_DIFFERENCE = 2e-6
"""Of the largest logit: sums in another order."""


def save_model(name, directory, **changes):
    """Save a model of transformers with random weights, vectors included; return it."""
    kind, fields = MODELS[name]
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**fields | changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.2)
    model.save_pretrained(directory)
    return model


def add_tensor(directory, name, tensor):
    tensors = safetensors.load_file(directory / "model.safetensors")
    safetensors.save_file(tensors | {name: tensor}, directory / "model.safetensors", metadata={"format": "pt"})


def compute_logits(config, directory, tokens):
    """Return the logits of the trainer's layers with the weights in `directory`."""
    built = [spec.build() for spec in layers(config, seed=1, part=Slice())]
    stored = dict(enumerate(built[:-1] if config.is_tied else built))
    load_weights(stored, directory, config, Slice())
    x = tokens
    with torch.no_grad():
        for module in built[:-1]:
            x = (stored[0] if module is built[0] else module)(x)
        return gpt.logits(built[0], x) if config.is_tied else built[-1](x)


def refuse_loading(directory, words):
    """Load all layers, as one rank does."""
    with pytest.raises(Refused, match=words):
        compute_logits(read_model(directory), directory, torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize("name", MODELS)
def test_weights_give_the_logits_of_transformers(tmp_path, name):
    theirs = save_model(name, tmp_path)
    config = read_model(tmp_path, sequence=48)
    tokens = torch.randint(264, (2, 48), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = theirs(tokens).logits
    largest = float(expected.abs().max())
    assert largest > 1
    assert float((compute_logits(config, tmp_path, tokens) - expected).abs().max()) <= MAX_DIFFERENCE * largest


@pytest.mark.parametrize("name", MODELS)
def test_names_and_rows_survive_both_directions(tmp_path, name):
    """Also through config.json: what is written is read as the same model."""
    save_model(name, tmp_path)
    config = read_model(tmp_path)
    theirs = safetensors.load_file(tmp_path / "model.safetensors")
    spelled = {key if key.startswith(("model.", "transformer.", "lm_head")) else f"transformer.{key}" for key in theirs}
    written = {}
    for number, spec in enumerate(layers(config, seed=1, part=Slice())):
        if not (config.is_tied and number == config.layers + 3):
            layer = dict(spec.build().named_parameters())
            read = from_transformers(config, number, iter(layer), lambda key: theirs.get(key, theirs.get(key[12:])))
            written |= dict(to_transformers(config, number, read))
    assert written.keys() == spelled - ({"lm_head.weight"} if config.is_tied else set())
    for key, value in written.items():
        assert value.equal(theirs.get(key, theirs.get(key.removeprefix("transformer."))))
    (tmp_path / "config.json").write_text(json.dumps(write_config(config)))
    assert read_model(tmp_path) == config


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}, {"tensor": 2}], ids=["one", "pp2", "tp2"])
def test_run_begins_with_the_weights_on_any_layout(corpus, tmp_path, parallel):
    """The first loss is that of transformers on the same batch."""
    theirs = save_model("llama", tmp_path / "hf")
    model = read_model(tmp_path / "hf", sequence=32).model_dump(exclude_defaults=True)
    config = tiny(steps=1, model=model, parallel=parallel, data={"prefix": str(corpus)}, weights=str(tmp_path / "hf"))
    ranks = run_ranks(tmp_path / "run", 2 if parallel else 1, config)
    settings = TrainerConfig.model_validate(config)
    batches = open_data(settings).training(settings, data_rank=0, data_ranks=1)
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), labels.flatten())
            for tokens, labels in batches.step(0, settings.batch.global_batch)
        ]
    assert ranks[0]["losses"][0] == pytest.approx(float(torch.stack(losses).mean()), abs=2e-6)


def test_resume_needs_the_first_weights_no_more(corpus, tmp_path):
    save_model("llama3-tied", tmp_path / "hf")
    model = read_model(tmp_path / "hf", sequence=32).model_dump(exclude_defaults=True)
    config = tiny(model=model, parallel={}, data={"prefix": str(corpus)}, weights=str(tmp_path / "hf"))
    saved = run_ranks(tmp_path / "run", 1, config, steps=1, save=True)
    shutil.rmtree(tmp_path / "hf")
    loaded = run_ranks(tmp_path / "run", 1, config, steps=1, resume=True)
    assert [rank["first"] for rank in loaded] == [rank["last"] for rank in saved]


REFUSED = {
    "qwen2": ({"use_sliding_window": True, "sliding_window": 16}, "its attention sees the last 16 tokens"),
    "llama": ({"hidden_act": "gelu"}, "hidden_act is gelu, and this trainer has only silu"),
    "llama3-tied": ({"attention_bias": True}, "attention_bias is True"),
    "gpt2": ({"activation_function": "relu", "n_inner": 100}, "activation_function is relu.*n_inner is 100"),
    "bloom": ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_trainer_cannot_do_is_refused(tmp_path, name):
    changes, words = REFUSED[name]
    save_model(name, tmp_path, **changes)
    with pytest.raises(Refused, match=words):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("scale_attn_by_inverse_layer_idx", True), ("tie_word_embeddings", False), ("add_cross_attention", True)],
)
def test_variants_of_gpt2_are_refused(tmp_path, key, value):
    save_model("gpt2", tmp_path, **{key: value})
    with pytest.raises(Refused, match=f"{key} is {value}, and this trainer has only"):
        read_model(tmp_path)


def test_window_of_an_absent_key_is_refused(tmp_path):
    save_model("qwen2", tmp_path, use_sliding_window=True)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path, sequence=4096).sequence == 4096
    with pytest.raises(Refused, match="its attention sees the last 4096 tokens"):
        read_model(tmp_path, sequence=8192)


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


@pytest.mark.parametrize(*read_cases(__file__, "unreadable_config_of_a_model_is_refused"))
def test_unreadable_config_of_a_model_is_refused(tmp_path, content, words):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(Refused, match=words):
        read_model(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    save_model("llama", tmp_path)
    config = read_model(tmp_path).model_copy(update={"ffn": 96})
    with pytest.raises(Refused, match="is another model: ffn is 80 there and 96 here"):
        load_weights({}, tmp_path, config, Slice())


def test_missing_tensor_is_named(tmp_path):
    save_model("llama", tmp_path)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    refuse_loading(tmp_path, r"has no tensor model\.layers\.1\.mlp\.up_proj\.weight")


@pytest.mark.parametrize(*read_cases(__file__, "tensors_that_would_be_left_out_are_refused_by_all_their_names"))
def test_tensors_that_would_be_left_out_are_refused_by_all_their_names(tmp_path, name, tensors):
    save_model(name, tmp_path)
    for tensor in tensors:
        add_tensor(tmp_path, tensor, torch.ones(32))
    refuse_loading(
        tmp_path, f"has {re.escape(', '.join(sorted(tensors)))}, which the model of its config.json does not"
    )


def test_tensor_that_only_a_shard_names_is_refused(tmp_path):
    save_model("llama", tmp_path)
    names = safetensors.load_file(tmp_path / "model.safetensors").keys()
    add_tensor(tmp_path, "score.weight", torch.ones(32))
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    index = {"weight_map": dict.fromkeys(names, "shard.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse_loading(tmp_path, r"has score\.weight, which")


def test_rank_leaves_the_layers_of_others_to_them(tmp_path):
    save_model("llama", tmp_path)
    add_tensor(tmp_path, "model.layers.1.odd.weight", torch.ones(32))
    config = read_model(tmp_path)
    first, second = (layers(config, seed=1, part=Slice())[number].build() for number in (2, 3))
    load_weights({2: first}, tmp_path, config, Slice())
    with pytest.raises(Refused, match=r"has model\.layers\.1\.odd\.weight, which"):
        load_weights({3: second}, tmp_path, config, Slice())


@pytest.mark.parametrize("kind", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2", "bool"])
def test_numbers_that_stand_for_others_are_refused(tmp_path, kind):
    save_model("llama", tmp_path)
    names = [f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up")]
    for name in names:
        add_tensor(tmp_path, name, torch.zeros(80, 32).to(getattr(torch, kind)))
    refuse_loading(tmp_path, f"{names[0]} .{kind}., {names[1]} .{kind}., with quantised")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_by_all_their_names(tmp_path, value):
    save_model("llama", tmp_path)
    broken = torch.ones(32)
    broken[7] = value
    names = ["model.layers.0.input_layernorm.weight", "model.norm.weight"]
    for name in names:
        add_tensor(tmp_path, name, broken)
    refuse_loading(tmp_path, f"{names[0]} .float32., {names[1]} .float32., with quantised or infinite numbers or NaN")


@pytest.mark.parametrize(*read_cases(__file__, "two_settings_of_positions_must_agree"))
def test_two_settings_of_positions_must_agree(tmp_path, scaling, parameters, agree):
    save_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling, "rope_parameters": parameters}))
    if agree:
        assert (
            read_model(tmp_path).theta
            == transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"]
        )
        return
    with pytest.raises(Refused, match="rope_scaling and rope_parameters differ"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "h.1.attn.bias"),
        ("gpt2", "h.1.attn.masked_bias"),
    ],
)
def test_buffers_of_older_files_are_left_out(tmp_path, name, tensor):
    save_model(name, tmp_path)
    add_tensor(tmp_path, tensor, torch.ones(4))
    compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize("is_same", [True, False])
def test_output_beside_a_tied_embedding_must_be_the_same(tmp_path, is_same):
    """transformers uses the output of the file if it differs."""
    theirs = save_model("llama3-tied", tmp_path)
    add_tensor(tmp_path, "lm_head.weight", theirs.lm_head.weight.detach() + (not is_same))
    if is_same:
        compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))
    else:
        refuse_loading(tmp_path, r"lm_head\.weight differs from the embedding.*tie_word_embeddings = false")


@pytest.mark.parametrize("name", ["llama", "llama3-tied", "gpt2"])
def test_added_rows_are_the_mean_of_the_others(tmp_path, name):
    """A vocabulary that tensor ranks do not divide is padded; the loss grows by at most log(1 + added / rows)."""
    theirs = save_model(name, tmp_path)
    config = read_model(tmp_path, sequence=48).model_copy(update={"vocabulary": 267})
    tokens = torch.randint(264, (2, 48), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = theirs(tokens).logits
    logits = compute_logits(config, tmp_path, tokens)
    assert logits.shape[-1] == 267
    assert float((logits[..., :264] - expected).abs().max()) <= MAX_DIFFERENCE * float(expected.abs().max())
    growth = logits.logsumexp(-1) - expected.logsumexp(-1)
    assert float(growth.max()) <= math.log(1 + 3 / 264) + 1e-5
    with pytest.raises(Refused, match="vocabulary is 264 there and 263 here"):
        load_weights({}, tmp_path, config.model_copy(update={"vocabulary": 263}), Slice())


def test_import_prints_the_tables_of_a_train(tmp_path, capsys):
    save_model("llama3-tied", tmp_path)
    assert main(["import", str(tmp_path), "--sequence", "32"]) == 0
    trainer = tomllib.loads(capsys.readouterr().out)["trainer"]
    assert trainer["weights"] == str(tmp_path)
    assert ModelConfig.model_validate(trainer["model"]) == read_model(tmp_path, sequence=32)
    assert main(["import", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize("name", [*MODELS, "mistral-window", "qwen2-window"])
def test_export_states_what_import_took(tmp_path, name):
    window = {"sliding_window": 48, "use_sliding_window": True, "max_window_layers": 0} if "-w" in name else {}
    save_model(name.removesuffix("-window"), tmp_path, initializer_range=0.03, use_cache=False, **window)
    first = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    config = read_model(tmp_path, sequence=32).model_copy(update={"vocabulary": 272})  # shorter and larger
    assert kind_of(tmp_path, config.model_copy(update={"layers": 1})) == {}
    (tmp_path / "config.json").write_text(json.dumps(write_config(config) | kind_of(tmp_path, config)))
    again = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    changed = {key for key in first if again[key] != first[key] and not key.endswith("pdrop")}
    assert changed - {"n_positions", "dtype"} == {"vocab_size"}


def spoil(path):
    """Change one weight of a file."""
    tensors = safetensors.load_file(path)
    next(iter(tensors.values()))[:] = 1
    safetensors.save_file(tensors, path, metadata={"format": "pt"})


def test_exported_llama_gives_the_same_logits(corpus, tmp_path):
    """Two stages of two tensor ranks, trained for some steps."""
    model = {"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 80, "sequence": 32}
    config = tiny(model=model, parallel={"pipeline": 2, "tensor": 2}, data={"prefix": str(corpus)})
    run_ranks(tmp_path, 4, config, steps=3, save=True)
    checkpoint = tmp_path / "checkpoints" / "step-0000003"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"eos_token_id": [256, 7]}')
    (tmp_path / "hf" / "generation_config.json").write_text('{"eos_token_id": [256, 7]}')
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    assert main(["export", str(checkpoint), str(tmp_path / "out"), "--tokenizer", str(tmp_path / "hf")]) == 0
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / file).read_text())["eos_token_id"] == [256, 7]
    assert compare(checkpoint, tmp_path / "out") <= 1e-5
    spoil(tmp_path / "out" / "model-00003-of-00006.safetensors")
    assert main(["compare", str(checkpoint), str(tmp_path / "out")]) == 1
    assert read_model(tmp_path / "out") == ModelConfig.model_validate(
        model | {"head_width": 8, "rope_theta": 10_000.0, "norm_eps": 1e-5, "tied": False}
    )
