"""Models of transformers go on as they would there, under every cut, and come back: import, steps, resume, export."""

import functools
import math

import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import torch
import transformers

from opsctl.trainer.checkpoint.__main__ import main
from opsctl.trainer.checkpoint.transformers_config import read_model
from opsctl.trainer.config import TrainerConfig
from tests.support.cases import read_table
from tests.support.plain_trainer import train
from tests.support.trainer_ranks import run_ranks
from tests.support.transformers_models import MODELS, save_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

CUTS = read_table(__file__, "cuts")
KINDS = [name for name in MODELS if name != "qwen3-one-group"]  # which two tensor ranks cannot share
STEPS = 3


@pytest.fixture(scope="module")
def begun(corpus, tmp_path_factory):
    """A function that begins with a model of transformers: its directory, the settings, and that model after steps of a
    plain loop, with their losses and norms."""

    @functools.cache
    def begin(kind):
        directory = tmp_path_factory.mktemp(kind)
        theirs = save_model(kind, directory)
        model = read_model(directory, sequence=32).model_dump(exclude_defaults=True)
        config = tiny(steps=STEPS, model=model, parallel={}, data={"prefix": str(corpus)}, weights=str(directory))
        return directory, config, theirs, *train(TrainerConfig.model_validate(config), theirs)

    return begin


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_imported_model_is_trained_as_in_transformers_and_exported(begun, tmp_path, kind, cut):
    directory, config, theirs, losses, norms = begun(kind)
    world, parallel = CUTS[cut]
    ranks = run_ranks(tmp_path, world, config | {"parallel": parallel}, save=True)
    loss = max(abs(a / b - 1) for a, b in zip(ranks[0]["losses"], losses, strict=True))
    norm = max(abs(a / b - 1) for a, b in zip(ranks[0]["norms"], norms, strict=True))
    checkpoint, out = tmp_path / "checkpoints" / f"step-{STEPS:07}", tmp_path / "out"
    assert main(["export", str(checkpoint), str(out), "--tokenizer", str(directory)]) == 0
    assert read_model(out).kind.name == read_model(directory).kind.name
    ours = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = torch.randint(1, 264, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
        logit = float((ours(tokens).logits - expected).abs().max() / expected.abs().max())
    figures = f"losses within {loss:.1e}, norms {norm:.1e}, logits after the export {logit:.1e}"
    print(f"\n{kind} {cut}: {figures}")  # noqa: T201 - the figure
    assert max(loss, norm) < 1e-5
    assert logit < 1e-4  # AdamW divides by the size of a gradient, also of one that is all rounding
    assert ours.generate(tokens[:1, :4], max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_imported_model_resumes_to_the_bit(begun, tmp_path, kind, precision):
    _, config, *_ = begun(kind)
    world, parallel = CUTS["pp2-tp2-sp"]
    config |= {"parallel": parallel, "precision": precision, "model": config["model"] | {"dropout": 0.1}}
    whole = run_ranks(tmp_path / "whole", world, config)
    run_ranks(tmp_path / "cut", world, config, steps=1, save=True)
    resumed = run_ranks(tmp_path / "cut", world, config, steps=STEPS - 1, resume=True)
    for first, again in zip(whole, resumed, strict=True):
        assert again["last"] == first["last"]
        assert again["losses"] == first["losses"][1:]


@pytest.mark.parametrize(("kind", "rows"), [("gpt2", 263), ("llama", 265)])
def test_added_rows_of_the_vocabulary_cost_little(corpus, tmp_path, kind, rows):
    """Two tensor ranks cannot share an odd vocabulary."""
    save_model(kind, tmp_path / "hf", vocab_size=rows)
    model = read_model(tmp_path / "hf", sequence=32).model_dump(exclude_defaults=True)
    config = tiny(steps=1, model=model, parallel={}, data={"prefix": str(corpus)}, weights=str(tmp_path / "hf"))
    alone = run_ranks(tmp_path / "alone", 1, config)
    larger = config | {"model": model | {"vocabulary": rows + 1}, "parallel": {"tensor": 2}}
    ranks = run_ranks(tmp_path / "cut", 2, larger, save=True)
    growth = ranks[0]["losses"][0] - alone[0]["losses"][0]
    assert -2e-6 <= growth <= math.log(1 + 1 / rows) + 2e-6
    checkpoint, out = tmp_path / "cut" / "checkpoints" / "step-0000001", tmp_path / "out"
    assert main(["export", str(checkpoint), str(out), "--tokenizer", str(tmp_path / "hf"), "--compare"]) == 0
    assert read_model(out).vocabulary == rows + 1
