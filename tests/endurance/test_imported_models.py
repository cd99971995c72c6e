"""Real models of transformers go on under a cut, and come back: import, steps, export, equal logits."""

import json
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
from tests.support.cases import read_table
from tests.support.trainer_ranks import run_ranks
from tests.support.transformers_models import save_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

CASES = read_table(__file__, "models")


@pytest.mark.parametrize("name", CASES)
def test_imported_model_goes_on_and_is_exported(corpus, tmp_path, capsys, name):
    kind, changes, parallel = CASES[name]
    save_model(kind, tmp_path / "hf", **changes)
    assert main(["import", str(tmp_path / "hf"), "--sequence", "32", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    rows = model["vocabulary"]
    model["vocabulary"] += rows % 2  # as the refusal of two tensor ranks asks for
    data = {"prefix": str(corpus)}
    begun = tiny(steps=3, model=model, parallel={}, data=data, weights=str(tmp_path / "hf"))
    alone = run_ranks(tmp_path / "alone", 1, begun | {"model": model | {"vocabulary": rows}}, steps=1)
    ranks = run_ranks(tmp_path / "cut", 2, begun | {"parallel": parallel}, steps=3, save=True)
    growth = ranks[0]["losses"][0] - alone[0]["losses"][0]
    assert -2e-6 <= growth <= math.log(1 + (rows % 2) / rows) + 2e-6
    checkpoint = tmp_path / "cut" / "checkpoints" / "step-0000003"
    out = tmp_path / "out"
    assert main(["export", str(checkpoint), str(out), "--tokenizer", str(tmp_path / "hf"), "--compare"]) == 0
    assert read_model(out).vocabulary == model["vocabulary"]
    assert read_model(out).family == kind.partition("-")[0].replace("llama3", "llama")
    print(f"\n{name}: the first loss grows by {growth:.2g}")  # noqa: T201 - the figure
    tokens = torch.randint(rows, (1, 4), generator=torch.Generator().manual_seed(1))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert theirs.generate(tokens, max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 6)
