"""Compiled blocks: the same numbers and names, and a way back when something does not compile."""

import copy

import pytest

pytest.importorskip("deepspeed")

import torch
from torch.nn.attention.flex_attention import create_block_mask

from opsctl.trainer import architecture, compiled_blocks, families
from opsctl.trainer.attention import Attention, alibi_slopes
from opsctl.trainer.compiled_blocks import FlexAttention, compile_stage, list_tiles, remove_compilation, try_block
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.tensor_parallel import Slice

pytestmark = pytest.mark.torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 16}


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    """Everything but the last stage of the compiler, which needs seconds per block."""
    monkeypatch.setattr(compiled_blocks, "_BACKEND", "aot_eager")
    torch._dynamo.reset()


class OneRank:
    def __init__(self, *others):
        self.others = others

    def gather(self, value):
        return [value, *self.others]


def make_config(**changes):
    model = MODEL | changes.pop("model", {})
    return TrainerConfig.model_validate({"steps": 1, "precision": "fp32", "compile": True, "model": model} | changes)


def build_blocks(config, part=Slice()):  # noqa: B008 - frozen
    return [spec.build() for spec in architecture.layers(config.model, seed=1, part=part)[2:4]]


def run(block, starts=None):
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(3)).requires_grad_()
    output = block(x) if starts is None else block((x, starts))[0]
    return output, *torch.autograd.grad(output.square().sum(), [x, *block.parameters()])


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama"])
def test_compiled_blocks_compute_the_same(family, is_apart):
    config = make_config(model={"family": family}, data={"separate_documents": is_apart})
    starts = torch.tensor([0] * 5 + [5] * 11).expand(2, -1).contiguous() if is_apart else None
    blocks = build_blocks(config)
    plain = copy.deepcopy(blocks)
    assert compile_stage(blocks, config, CPU, OneRank()) == ""
    for block, reference in zip(blocks, plain, strict=True):
        torch.testing.assert_close(run(block, starts), run(reference, starts), rtol=1e-5, atol=1e-6)
        assert list(block.state_dict()) == list(reference.state_dict())


@pytest.mark.parametrize("family", families.NAMES)
def test_a_block_is_one_piece_of_compiled_code(family):
    """A look at the description of a family, or at a table of positions, would cut it in two."""
    (block, _) = build_blocks(make_config(model={"family": family}))
    torch.compile(block, backend="eager", fullgraph=True)(torch.randn(2, 16, 32))


@pytest.mark.parametrize("cuts_sequence", [False, True])
def test_blocks_of_tensor_ranks_are_tried_alone(cuts_sequence):
    """Without a process group, in which a rank would wait for one whose trial has failed."""
    config = make_config(model={"family": "olmo2"}, parallel={"tensor": 2, "sequence_parallel": cuts_sequence})
    blocks = build_blocks(config, Slice(rank=1, size=2, cuts_sequence=cuts_sequence))
    assert compile_stage(blocks, config, CPU, OneRank()) == ""
    assert all(block._compiled_call_impl for block in blocks)


def test_failing_compiler_leaves_blocks_as_they_are(monkeypatch):
    monkeypatch.setattr(compiled_blocks, "_BACKEND", lambda graph, inputs: 1 / 0)
    blocks = build_blocks(make_config())
    reason = compile_stage(blocks, make_config(), CPU, OneRank())
    assert reason.startswith("blocks are not compiled: rank 0: ")
    assert "division by zero" in reason or "BackendCompilerFailed" in reason
    assert all(block._compiled_call_impl is None for block in blocks)
    run(blocks[0])


def test_wrong_results_leave_blocks_as_they_are(monkeypatch):
    monkeypatch.setattr(compiled_blocks, "_BACKEND", lambda graph, inputs: lambda *args: [2 * x for x in graph(*args)])
    assert "off by" in try_block(build_blocks(make_config())[0], make_config(), CPU)


def test_trial_of_another_rank_counts():
    blocks = build_blocks(make_config())
    assert compile_stage(blocks, make_config(), CPU, OneRank("no ninja")) == "blocks are not compiled: rank 1: no ninja"
    assert blocks[0]._compiled_call_impl is None


@pytest.mark.parametrize(
    ("changes", "device", "reason"),
    [
        ({"compile": False}, GPU, ""),
        ({"compile": "auto"}, CPU, ""),
        ({"compile": "auto", "model": {"dropout": 0.1}}, GPU, "blocks are not compiled: every block seeds"),
    ],
)
def test_obstacles_are_named(changes, device, reason):
    config = make_config(**changes)
    assert compile_stage([], config, device, OneRank()).startswith(reason)
    assert bool(reason) == bool(compile_stage([], config, device, OneRank()))


def test_failing_flex_attention_is_named_too():
    """A GPU that is not there fails both trials."""
    config = make_config(model={"family": "bloom"})
    blocks = build_blocks(config)
    reason = compile_stage(blocks, config, torch.device("cuda", 99), OneRank())
    assert reason.startswith("flex_attention is not used: rank 0: ")
    assert "; blocks are not compiled: rank 0: " in reason
    assert isinstance(blocks[0].attention, Attention)


def test_search_for_a_nan_finds_its_hooks():
    blocks = build_blocks(make_config())
    compile_stage(blocks, make_config(), CPU, OneRank())
    run(blocks[0])
    calls = []
    blocks[0].up.register_forward_hook(lambda *_: calls.append(1))
    remove_compilation(blocks[0])
    run(blocks[0])
    assert calls == [1]


KINDS = {
    "all": Attention(),
    "window": Attention(window=77, queries=2),
    "alibi": Attention(slopes=alibi_slopes(4)),
    "capped": Attention(window=150, cap=2.0, scale=0.3),
}


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
@pytest.mark.parametrize("kind", KINDS)
def test_flex_attention_equals_the_attention_of_documents(kind, is_apart):
    """A GPU computes the gradients too, which are compared there before the first step."""
    plain, places = KINDS[kind], torch.arange(300)
    starts = torch.stack([places // 90 * 90, 131 * (places >= 131)])
    q, k, v = (torch.randn(2, heads, 300, 8) for heads in (4, 4 // plain.queries, 4 // plain.queries))
    arguments = q, k, v, starts if is_apart else None, 0.0
    mixed = torch.compile(FlexAttention(plain, CPU), backend="aot_eager", fullgraph=True)(*arguments)
    torch.testing.assert_close(mixed, plain(*arguments), rtol=1e-5, atol=1e-5)


def test_tiles_are_those_that_torch_finds_from_all_scores():
    first = torch.tensor([0] * 100 + [100] * 240 + [340] * 160).expand(1, -1)
    torchs = create_block_mask(lambda _b, _h, i, j: (i >= j) & (j >= first[0, i]), 1, None, 500, 500, device="cpu")
    counts, numbers, whole_counts, whole_numbers = list_tiles(first)
    assert counts.equal(torchs.kv_num_blocks)
    assert whole_counts.equal(torchs.full_kv_num_blocks)
    assert int(counts.sum() + whole_counts.sum()) < 10  # of which there would be without documents
    for ours, theirs, count in (
        (numbers, torchs.kv_indices, counts),
        (whole_numbers, torchs.full_kv_indices, whole_counts),
    ):
        is_used = torch.arange(4) < count.unsqueeze(-1)
        assert ours[is_used].equal(theirs[is_used])
