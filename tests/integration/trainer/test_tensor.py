"""Tensor parallelism: the numbers equal those of one process, before and after a restart."""

import math
import re

import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")

import torch

from opsctl.trainer.architecture import layers, parameter_groups, universal_info
from opsctl.trainer.attention import alibi_slopes
from opsctl.trainer.config import ModelConfig, TrainerConfig
from opsctl.trainer.tensor_parallel import Slice
from tests.support.plain_trainer import train as train_plainly
from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 32}
CUT = {"pipeline": 2, "tensor": 2}
GROUPED = {"family": "llama", "kv_heads": 2, "head_width": 12, "ffn": 80, "rope_theta": 500.0}
FAMILIES = {
    "gpt2": {"family": "gpt2"},
    "bloom": {"family": "bloom"},
    "llama": {"family": "llama"},
    "qwen2": GROUPED | {"qkv_bias": True, "tied": True},
    "qwen3": GROUPED | {"qk_norm": True},
}


@pytest.fixture(scope="module")
def config(corpus):
    return tiny(steps=6, model=MODEL, data={"prefix": str(corpus)})


@pytest.mark.parametrize(
    ("changes", "cut"), [({"layers": 3}, {"blocks": [2, 1]}), (GROUPED | {"qk_norm": True}, {})], ids=["gpt2", "llama"]
)
def test_losses_and_norms_equal_those_of_a_plain_loop(config, tmp_path, changes, cut):
    """With stages of two blocks and one; with norms of heads, whose gradients are summed over the ranks."""
    model = config | {"model": MODEL | changes}
    losses, norms = train_plainly(TrainerConfig.model_validate(model))
    assert min(norms) > config.get("optimizer", {}).get("clip", 1.0)  # each step is clipped
    for rank in run_ranks(tmp_path, 4, model | {"parallel": CUT | cut}):
        assert rank["losses"] == pytest.approx(losses, abs=1e-6)
        assert rank["norms"] == pytest.approx(norms, rel=1e-6)


def test_no_restart_spike(config, tmp_path):
    """Weights, optimizer and dropout of every rank continue exactly after a save and a load."""
    parallel = config | {"parallel": CUT, "model": MODEL | {"dropout": 0.1, "family": "bloom"}}
    whole = run_ranks(tmp_path / "whole", 4, parallel)
    saved = run_ranks(tmp_path / "cut", 4, parallel, steps=3, save=True)
    loaded = run_ranks(tmp_path / "cut", 4, parallel, steps=3, resume=True)
    for reference, before, after in zip(whole, saved, loaded, strict=True):
        assert (before["is_undrawn"], after["is_undrawn"]) == (False, True)
        assert after["first"] == before["last"]
        assert before["losses"] + after["losses"] == reference["losses"]
        assert after["last"] == reference["last"]
    for slice_rank in (0, 1):  # the embedding of the first stage, and its copy on the last
        first, last = loaded[slice_rank], loaded[2 + slice_rank]
        assert first["first"]["tied_modules.embedding.weight"] == last["first"]["tied_modules.embedding.weight"]
        assert first["last"]["tied_modules.embedding.weight"] == last["last"]["tied_modules.embedding.weight"]


@pytest.mark.parametrize("family", FAMILIES)
def test_joined_slices_equal_the_whole_model(family):
    """The checkpoint tools join slices by the patterns of `universal_info`."""
    model = ModelConfig.model_validate(MODEL | FAMILIES[family])
    info = universal_info(model)
    replicated, rows = info["tp_replicated_parameter_patterns"], info["parameter_with_row_parallelism_patterns"]
    whole, *slices = (build_parameters(model, part) for part in (Slice(), Slice(rank=0, size=2), Slice(rank=1, size=2)))
    matched = set()
    for name, value in whole.items():
        parts = [slice[name] for slice in slices]
        patterns = [pattern for pattern in (*replicated, *rows) if re.match(pattern, name)]
        assert len(patterns) < 2
        matched.update(patterns)
        if patterns and patterns[0] in replicated:
            assert all(part.equal(value) and not part.model_parallel for part in parts)
        else:
            assert torch.cat(parts, dim=1 if patterns else 0).equal(value)
            assert all(part.model_parallel for part in parts)
    assert matched == {*replicated, *rows}


def build_parameters(model, part):
    """Return the parameters of all layers by their names in a pipeline."""
    parameters = {}
    specs = layers(model, seed=1, part=part)
    for number, spec in enumerate(specs[:-1] if model.is_tied else specs):
        prefix = "tied_modules.embedding" if model.is_tied and not number else number
        for name, value in spec.build().named_parameters():
            value.model_parallel = getattr(value, "model_parallel", False)
            parameters[f"{prefix}.{name}"] = value
    return parameters


def test_ranks_draw_own_numbers_and_then_the_same():
    """Seeds cover the whole range of torch; a seed just below its end must not stop the run."""
    drawn = []
    for rank in (0, 1):
        torch.manual_seed((1 << 64) - 1)
        with Slice(rank=rank, size=2).own_randomness():
            own = torch.rand(4)
        drawn.append((own, torch.rand(4)))
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_only_matrices_decay():
    """In BLOOM the norm after the embedding decayed by mistake, which stayed unnoticed for long."""
    model = ModelConfig.model_validate(MODEL | {"family": "bloom"})
    module = torch.nn.ModuleList([spec.build() for spec in layers(model, seed=1, part=Slice())[:-1]])
    decaying, others = parameter_groups(module, weight_decay=0.1)
    names = {id(value): name for name, value in module.named_parameters()}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert {names[id(p)].rpartition(".")[0].split(".")[-1] for p in decaying["params"]} == {
        "0",
        "qkv",
        "out",
        "up",
        "down",
    }
    assert {"1.weight", "1.bias"} <= {names[id(p)] for p in others["params"]}


@pytest.mark.parametrize("heads", [1, 2, 8, 12])
def test_slopes_fall_evenly_and_never_repeat(heads):
    values = alibi_slopes(heads)
    assert len(set(values)) == heads
    if heads == 8:
        assert values == tuple(2.0**-n for n in range(1, 9))  # as in the paper
    if heads == 12:  # the slopes of 8 heads, and every second slope of 16
        assert values[8:] == pytest.approx([2 ** (-(2 * n + 1) / 2) for n in range(4)])
    assert all(0 < slope < 1 and math.isfinite(slope) for slope in values)
