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

from opsctl.trainer.checkpoint.__main__ import main
from opsctl.trainer.checkpoint.export import compare
from opsctl.trainer.checkpoint.transformers_config import read_model, write_config
from opsctl.trainer.checkpoint.transformers_weights import from_transformers, load_weights, to_transformers
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import layer_parameters, model_parameters
from opsctl.trainer.tensor_parallel import Slice
from tests.support.cases import read_cases
from tests.support.plain_trainer import PlainModel, train
from tests.support.trainer_ranks import run_ranks
from tests.support.transformers_models import MODELS, add_tensor, save_model

pytestmark = pytest.mark.torch

MAX_DIFFERENCE = 4e-6
"""Of the largest logit: sums in another order."""


def load_model(config, directory):
    """Return the trainer's layers with the weights in `directory`."""
    model = PlainModel(config)
    load_weights(dict(enumerate(model.stack)), directory, config, Slice())
    return model


def compute_logits(config, directory, tokens):
    with torch.no_grad():
        return load_model(config, directory)(tokens)


@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_every_gradient_are_those_of_transformers(tmp_path, name):
    """Without token 0, Gemma's padding, which has no gradient as an input of transformers."""
    theirs = save_model(name, tmp_path)
    config = read_model(tmp_path)
    tokens, labels = torch.randint(1, 264, (2, 2, config.sequence), generator=torch.Generator().manual_seed(5))
    model = load_model(config, tmp_path)
    logits, expected = model(tokens), theirs(tokens).logits
    losses = [torch.nn.functional.cross_entropy(rows.flatten(0, 1), labels.flatten()) for rows in (logits, expected)]
    for loss in losses:
        loss.backward()
    ours = {"logits": logits, "loss": losses[0]}
    for number, layer in enumerate(model.stack):
        gradients = {key: parameter.grad for key, parameter in layer.named_parameters()}
        ours |= dict(to_transformers(config, number, gradients))
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters()}
    assert ours.keys() == gradients.keys() | {"logits", "loss"}
    apart = {}
    for key, values in ({"logits": expected, "loss": losses[1]} | gradients).items():
        apart[key] = float((ours[key] - values).detach().abs().max() / values.detach().abs().max())
    logit, loss, gradient = apart.pop("logits"), apart.pop("loss"), max(apart.values())
    print(f"\n{name}: logits within {logit:.1e}, loss {loss:.1e}, gradients {gradient:.1e}")  # noqa: T201 - the figure
    assert float(expected.abs().max()) > 1
    assert max(logit, loss) <= MAX_DIFFERENCE
    assert gradient <= 3 * MAX_DIFFERENCE


@pytest.mark.parametrize("name", MODELS)
def test_names_and_rows_survive_both_directions(tmp_path, name):
    """Also through config.json: what is written is read as the same model."""
    save_model(name, tmp_path)
    config = read_model(tmp_path)
    theirs = safetensors.load_file(tmp_path / "model.safetensors")
    spelled = {key if key.startswith(("model.", "transformer.", "lm_head")) else f"transformer.{key}" for key in theirs}
    written = {}
    stored = PlainModel(config).stack
    for number, layer in enumerate(stored):
        names = dict(layer.named_parameters())
        read = from_transformers(config, number, iter(names), lambda key: theirs.get(key, theirs.get(key[12:])))
        written |= dict(to_transformers(config, number, read))
    assert written.keys() == spelled - ({"lm_head.weight"} if config.is_tied else set())
    for key, value in written.items():
        assert value.equal(theirs.get(key, theirs.get(key.removeprefix("transformer."))))
    for number, layer in enumerate(stored):
        built = {key: tuple(parameter.shape) for key, parameter in layer.named_parameters()}
        assert {key: parameter.shape for key, parameter in layer_parameters(config, number).items()} == built
    assert model_parameters(config) == sum(value.numel() for value in written.values())
    (tmp_path / "config.json").write_text(json.dumps(write_config(config)))
    assert read_model(tmp_path) == config
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == config.kind.architecture


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}, {"tensor": 2}], ids=["one", "pp2", "tp2"])
def test_run_begins_with_the_weights_on_any_layout(corpus, tmp_path, parallel):
    """The first loss and norm are those of transformers on the same batch."""
    theirs = save_model("llama", tmp_path / "hf")
    model = read_model(tmp_path / "hf", sequence=32).model_dump(exclude_defaults=True)
    config = tiny(steps=1, model=model, parallel=parallel, data={"prefix": str(corpus)}, weights=str(tmp_path / "hf"))
    ranks = run_ranks(tmp_path / "run", 2 if parallel else 1, config)
    losses, norms = train(TrainerConfig.model_validate(config), theirs)
    assert ranks[0]["losses"] == pytest.approx(losses, abs=2e-6)
    assert ranks[0]["norms"] == pytest.approx(norms, rel=2e-6)


def test_resume_needs_the_first_weights_no_more(corpus, tmp_path):
    save_model("llama3-tied", tmp_path / "hf")
    model = read_model(tmp_path / "hf", sequence=32).model_dump(exclude_defaults=True)
    config = tiny(model=model, parallel={}, data={"prefix": str(corpus)}, weights=str(tmp_path / "hf"))
    saved = run_ranks(tmp_path / "run", 1, config, steps=1, save=True)
    shutil.rmtree(tmp_path / "hf")
    loaded = run_ranks(tmp_path / "run", 1, config, steps=1, resume=True)
    assert [rank["first"] for rank in loaded] == [rank["last"] for rank in saved]


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
    with pytest.raises(Refused, match=r"has no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize(*read_cases(__file__, "left_out"))
def test_tensors_that_would_be_left_out_are_refused_by_all_their_names(tmp_path, name, tensors):
    save_model(name, tmp_path)
    for tensor in tensors:
        add_tensor(tmp_path, tensor, torch.ones(32))
    names = ", ".join(sorted(tensors))
    with pytest.raises(Refused, match=f"has {re.escape(names)}, which the model of its config.json does not have"):
        load_weights({}, tmp_path, read_model(tmp_path), Slice())
    assert main(["import", str(tmp_path)]) == 2


def test_tensor_that_only_a_shard_names_is_refused(tmp_path):
    save_model("llama", tmp_path)
    names = safetensors.load_file(tmp_path / "model.safetensors").keys()
    add_tensor(tmp_path, "score.weight", torch.ones(32))
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    index = {"weight_map": dict.fromkeys(names, "shard.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Refused, match=r"has score\.weight, which"):
        load_weights({}, tmp_path, read_model(tmp_path), Slice())


@pytest.mark.parametrize("kind", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2", "bool"])
def test_numbers_that_stand_for_others_are_refused(tmp_path, kind):
    save_model("llama", tmp_path)
    codes = torch.zeros(80, 32).to(getattr(torch, kind))
    for part in ("up", "gate"):
        add_tensor(tmp_path, f"model.layers.1.mlp.{part}_proj.weight", codes)
    with pytest.raises(Refused, match=r"1\.mlp\.gate_proj\.weight \(.*1\.mlp\.up_proj\.weight \(.* are quantised"):
        load_weights({}, tmp_path, read_model(tmp_path), Slice())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_by_all_their_names(tmp_path, value):
    save_model("llama", tmp_path)
    broken = torch.ones(32)
    broken[7] = value
    names = ["model.layers.0.input_layernorm.weight", "model.norm.weight"]
    for name in names:
        add_tensor(tmp_path, name, broken)
    with pytest.raises(Refused, match=f"not finite in {', '.join(map(re.escape, names))}$"):
        compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


def test_tensor_of_another_shape_is_named(tmp_path):
    save_model("phi3", tmp_path)
    add_tensor(tmp_path, "model.layers.1.self_attn.qkv_proj.weight", torch.ones(60, 32))
    with pytest.raises(Refused, match=r"model\.layers\.1\.self_attn\.qkv_proj\.weight has another shape"):
        compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize(*read_cases(__file__, "buffers"))
def test_buffers_of_older_files_are_left_out(tmp_path, name, tensor):
    save_model(name, tmp_path)
    add_tensor(tmp_path, tensor, torch.ones(4))
    compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


def test_tensor_under_two_names_is_refused(tmp_path):
    save_model("gpt2", tmp_path)
    add_tensor(tmp_path, "wte.weight", torch.zeros(264, 32))
    with pytest.raises(Refused, match=r"has wte\.weight, which"):
        compute_logits(read_model(tmp_path), tmp_path, torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize("is_same", [True, False])
def test_output_beside_a_tied_embedding_must_be_the_same(tmp_path, is_same):
    """transformers uses the output of the file if it differs."""
    theirs = save_model("llama3-tied", tmp_path)
    add_tensor(tmp_path, "lm_head.weight", theirs.lm_head.weight.detach() + (not is_same))
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    if is_same:
        compute_logits(read_model(tmp_path), tmp_path, tokens)
        return
    with pytest.raises(Refused, match=r"lm_head\.weight differs from the embedding.*tie_word_embeddings = false"):
        compute_logits(read_model(tmp_path), tmp_path, tokens)


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
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == [256, 7]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [256, 7]
    assert compare(checkpoint, tmp_path / "out") <= 1e-5
    spoil(tmp_path / "out" / "model-00003-of-00006.safetensors")
    assert compare(checkpoint, tmp_path / "out") > 1e-3
    assert read_model(tmp_path / "out") == ModelConfig.model_validate(
        model | {"head_width": 8, "rope_theta": 10_000.0, "norm_eps": 1e-5, "tied": False}
    )
