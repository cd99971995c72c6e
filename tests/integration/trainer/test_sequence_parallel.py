"""Sequence parallelism: the same numbers as without, from slices of the sequence."""

import re

import pytest
from pydantic import ValidationError

from opsctl.trainer.prepare import main as prepare
from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")

import torch

from opsctl.trainer import dry_run, footprint, random_numbers
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.rank_layout import Layout
from tests.support.cases import read_cases
from tests.support.conversations import make_pairs, write_pairs
from tests.support.plain_trainer import train as train_plainly
from tests.support.trainer_ranks import run_ranks, run_slices

pytestmark = pytest.mark.torch

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 32}
QWEN = {"family": "llama", "kv_heads": 2, "head_width": 12, "ffn": 80, "qk_norm": True, "qkv_bias": True}
FAMILIES = {"gpt2": {"family": "gpt2"}, "bloom": {"family": "bloom"}, "llama": QWEN}
CASES = [*FAMILIES, *(f"{name} documents" for name in FAMILIES)]
CUT = {"tensor": 2, "sequence_parallel": True}


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """The results of both tensor ranks alone, without and with slices of the sequence, by case."""
    cases = [{"model": MODEL | family} for family in FAMILIES.values()]
    cases += [case | {"data": {"separate_documents": True}} for case in cases]
    cases += [{"model": MODEL | {"family": name}, "precision": "bf16"} for name in ("gpt2", "llama")]
    first, second = run_slices(tmp_path_factory.mktemp("slices"), 2, cases)
    return dict(zip([*CASES, "gpt2 bf16", "llama bf16"], zip(first, second, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_every_gradient_are_the_same(slices, case):
    for _, whole, cut in slices[case]:
        assert cut["loss"] == pytest.approx(whole["loss"], rel=1e-6)
        assert cut["gradients"].keys() == whole["gradients"].keys()
        for name, gradient in cut["gradients"].items():
            reference = torch.tensor(whole["gradients"][name])
            assert (torch.tensor(gradient) - reference).norm() <= 2e-6 * reference.norm(), name


@pytest.mark.parametrize("case", CASES)
def test_each_rank_has_a_share_of_the_gradients_of_norms(slices, case):
    """What is summed: the norms, the positions, and the biases behind a sum over the ranks."""
    (*_, first), (*_, second) = slices[case]
    family = case.split()[0]
    assert {name.split(".", 1)[1] for name in first["shares"]} >= {"norm1.weight", "norm2.weight", "weight"}
    assert ("2.out.bias" in first["shares"]) is (family != "llama")
    assert ("2.q_norm.weight" in first["shares"]) is (family == "llama")
    for name, share in first["shares"].items():
        total = torch.tensor(first["gradients"][name])
        assert torch.equal(total, torch.tensor(second["gradients"][name]))
        assert not torch.allclose(torch.tensor(share), total, rtol=0.01)
        assert (torch.tensor(share) + torch.tensor(second["shares"][name])).allclose(total, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_blocks_store_half_of_what_one_process_stores(slices, case):
    """Without slices the inputs of norms and of matrices behind them stay whole."""
    for alone, whole, cut in slices[case]:
        assert cut["saved"] <= alone["saved"] / 2 < 0.9 * whole["saved"]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_estimate_of_a_block_equals_what_autograd_stores(slices, family):
    """The formula of a GPT includes the masks of dropout, 2 of 34 bytes."""
    model = ModelConfig.model_validate(MODEL | {"family": family})
    tokens = MODEL["layers"] * 2 * MODEL["sequence"]
    for results in slices[f"{family} bf16"]:
        for result, ranks, held in zip(results, (1, 2, 2), (1, 1, 2), strict=True):
            estimate = tokens * footprint._block_activations(model, ranks, held)
            assert result["saved"] == pytest.approx(estimate, rel=0.08)


def test_run_over_stages_equals_a_plain_loop(corpus, tmp_path):
    """With recomputation; stages send their slices."""
    config = tiny(steps=4, model=MODEL, data={"prefix": str(corpus)}, recompute=True, parallel={})
    losses, norms = train_plainly(TrainerConfig.model_validate(config))
    for rank in run_ranks(tmp_path, 4, config | {"parallel": CUT | {"pipeline": 2}}):
        assert rank["losses"] == pytest.approx(losses, rel=1e-6)
        assert rank["norms"] == pytest.approx(norms, rel=1e-6)


def test_evaluations_of_two_ranks_are_those_of_one(train, tmp_path):
    """Held-out text and conversations, between steps of training."""
    write_pairs(tmp_path / "chats.jsonl", make_pairs(40))
    prepare(["--input", str(tmp_path / "chats.jsonl"), "--output", str(tmp_path / "chats"), "--chat", "32"])
    config = tiny(steps=4, model=MODEL | QWEN, checkpoint={}, evaluation={"every": 2, "batches": 2})
    config["evaluation"]["sets"] = [{"name": "chats", "prefix": str(tmp_path / "chats")}]
    found = []
    for world, parallel in ((1, {}), (2, CUT)):
        run = train(**config | {"parallel": parallel})
        run.config["data"] |= {"held_out": 0.1, "separate_documents": True}
        attempt = run.start(world)
        assert attempt.finish() == [0] * world
        numbers = re.findall(r"lm loss(?: value)?: (\S+)", attempt.log)
        found.append([float(number) for number in numbers])
    assert len(found[0]) == 4 + 2 * 2
    assert found[1] == pytest.approx(found[0], rel=2e-6)


@pytest.mark.parametrize(*read_cases(__file__, "sequence_that_cannot_be_cut_is_refused"))
def test_sequence_that_cannot_be_cut_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        TrainerConfig.model_validate({"steps": 1} | changes)


def test_each_slice_draws_its_own_dropout():
    config = TrainerConfig.model_validate({"steps": 1, "seed": 1, "parallel": CUT})
    drawn = []
    for rank in (0, 1):
        seeds = random_numbers.Seeds(config, Layout(pipeline=1, data=1, tensor=2), rank)
        seeds.start(0)
        seeds(random_numbers.BASE * 2)
        random_numbers.vary(7)
        drawn.append(torch.rand(4))
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("recompute", [False, True])
def test_estimate_divides_activations_by_the_tensor_ranks(recompute):
    """GPT without attention's matrix: 34 bytes per token and column (Korthikanti et al. 2022, eq. 4), or 2 stored."""
    model = {"layers": 10, "hidden": 1024, "heads": 16, "sequence": 2048}
    batch = {"micro_batch": 1, "global_batch": 8}
    config = TrainerConfig.model_validate(
        {"steps": 1, "model": model, "batch": batch, "recompute": recompute, "parallel": CUT | {"tensor": 4}}
    )
    estimate = footprint._activations(config, Layout(pipeline=1, data=1, tensor=4), 0, 10)
    stored = 10 * 2 + 34 if recompute else 10 * 34
    assert estimate == 2048 * 1024 * (stored / 4 + 4)


def test_dry_run_names_the_cut_of_the_sequence():
    config = TrainerConfig.model_validate({"steps": 1, "parallel": CUT})
    lines, _ = dry_run.report(config, 2)
    assert "pipeline 1 x tensor 2 x data 1, the sequence cut over the tensor ranks" in "\n".join(lines)
