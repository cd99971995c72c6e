"""torch.compile for the blocks of a stage, after a trial on the device.

The blocks are compiled in place, so that names of weights, checkpoints and DeepSpeed's view of the model stay the same.
If a block of any rank does not compile, or computes other numbers than before, the whole run stays uncompiled.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from opsctl.trainer.attention import Attention, capped, matrix_of
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.gpt import activations
from opsctl.trainer.process_groups import Control

_BACKEND = "inductor"
_TILE = 128
"""Queries and keys of a tile of flex_attention."""
_TOLERANCES = {torch.bfloat16: 0.05, torch.float32: 1e-4}
"""Largest relative distance between a compiled block and itself before: a few roundings of its type."""


class FlexAttention:
    """An `Attention` by torch's flex_attention: no matrix, and no work for tiles of scores that no query sees.

    Only inside a compiled block on a GPU: elsewhere, flex_attention keeps all scores in memory.
    """

    def __init__(self, plain: Attention, device: torch.device) -> None:
        self.plain = plain
        self._slopes = torch.tensor(plain.slopes, device=device) if plain.slopes else None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, _: float) -> Tensor:
        """Return the mixed values; there is no dropout in a compiled block."""
        batch, _, length, _ = q.shape
        first = q.new_zeros(batch, length, dtype=torch.int64) if starts is None else starts
        if self.plain.window:
            first = first.maximum(torch.arange(length, device=q.device) + 1 - self.plain.window)

        def is_visible(sample: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (key >= first[sample, query])

        def change(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            score = capped(score, self.plain.cap)
            return score if self._slopes is None else score - self._slopes[head] * (query - key)

        tiles = BlockMask.from_kv_blocks(*list_tiles(first), _TILE, is_visible, (length, length))
        options: Any = {"scale": self.plain.scale, "enable_gqa": self.plain.queries > 1}
        mixed: Tensor = flex_attention(q, k, v, score_mod=change, block_mask=tiles, **options)
        return mixed


def list_tiles(first: Tensor) -> list[Tensor]:
    """Return the tiles of scores that queries see in part, then those that they see whole.

    As counts [b, 1, tiles] and numbers [b, 1, tiles, tiles] for every tile of queries. `first` [b, s] is the first key
    that a query sees. torch's create_block_mask finds the same from a matrix of all scores.
    """
    number = torch.arange(-(-first.shape[1] // _TILE), device=first.device)
    rows, last = number.unsqueeze(1), (number * _TILE + _TILE - 1).clamp(max=first.shape[1] - 1)
    partial, whole = first[:, ::_TILE] // _TILE, -(-first[:, last] // _TILE)
    is_whole = (number >= whole.unsqueeze(2)) & (number < rows) & (rows * _TILE + _TILE <= first.shape[1])
    is_cut = (number >= partial.unsqueeze(2)) & (number <= rows) & ~is_whole
    found = []
    for tiles in (is_cut.int().unsqueeze(1), is_whole.int().unsqueeze(1)):
        found += [tiles.sum(-1, dtype=torch.int32), tiles.argsort(descending=True, stable=True).int()]
    return found


def compile_stage(blocks: Sequence[Any], config: TrainerConfig, device: torch.device, control: Control) -> str:
    """Compile the blocks of every rank if the trials of all ranks succeed; return what failed, to be logged.

    Returns an empty text if nothing failed, or if the config does not ask for compilation. All ranks together.
    """
    if config.compile is False or (config.compile == "auto" and device.type != "cuda"):
        return ""
    if config.model.dropout:
        return "blocks are not compiled: every block seeds its own dropout"
    notes = []
    if device.type == "cuda" and _profits_from_flex(config):
        problem = _try_together(blocks, config, device, control, flex=True)
        if not problem:
            matrix_of.cache_clear()  # those of the comparison
            return ""
        notes.append(f"flex_attention is not used: {problem}")
    if problem := _try_together(blocks, config, device, control, flex=False):
        notes.append(f"blocks are not compiled: {problem}")
    return "; ".join(notes)


def remove_compilation(module: nn.Module) -> None:
    """Run all blocks as they are written again: the search for a NaN needs hooks, which compiled code skips."""
    for child in module.modules():
        child._compiled_call_impl = None
        if isinstance(getattr(child, "attention", None), FlexAttention):
            child.attention = child.attention.plain


def _profits_from_flex(config: TrainerConfig) -> bool:
    """Return whether a block attends to anything but all earlier tokens alike, for which torch has faster kernels."""
    model = config.model
    has_matrix = model.kind.positions == "alibi" or model.score_cap or (model.window or model.sequence) < model.sequence
    return config.data.separate_documents or bool(has_matrix)


def _try_together(
    blocks: Sequence[Any], config: TrainerConfig, device: torch.device, control: Control, *, flex: bool
) -> str:
    """Compile the blocks if one of each kind compiles on every rank that has it; return the first rank's problem."""
    kinds = {(block.attention, block.rotates): block for block in blocks}.values()
    with torch.random.fork_rng(devices=[]):  # a resumed run has restored its random numbers
        tried = (try_block(block, config, device, flex=flex) for block in kinds)
        problems = control.gather(next(filter(None, tried), ""))
    problem = next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")
    if not problem:
        _compile(blocks, device, flex=flex)
        torch._dynamo.config.suppress_errors = True  # a later failure, as of evaluation, is logged and not raised
    return problem


def try_block(block: Any, config: TrainerConfig, device: torch.device, *, flex: bool = False) -> str:
    """Compile a copy of `block` and compare its results with those of `block`; return the problem, or an empty text.

    The copies exchange nothing with other tensor ranks, so that no rank waits for one whose trial has failed.
    """
    alone = replace(block.part, group=None)
    length = config.model.sequence // (alone.size if alone.cuts_sequence else 1)
    shape = (config.batch.micro_batch, length, config.model.hidden)
    kind = next(block.parameters()).dtype
    torch._dynamo.config.suppress_errors = False
    try:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device=device, dtype=kind)
        places = torch.arange(config.model.sequence, device=device)
        third = -(-config.model.sequence // 3)
        starts = (places // third * third).expand(shape[0], -1) if config.data.separate_documents else None
        compiled, plain = (copy.deepcopy(block, {id(block.part): alone}) for _ in range(2))
        _compile([compiled], device, flex=flex)
        pairs = zip(_results(compiled, x, starts), _results(plain, x, starts), strict=True)
        distance = max(_distance(ours, reference) for ours, reference in pairs)
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways, and training can do without them
        return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    return "" if distance <= _TOLERANCES[kind] else f"results of a compiled block are off by {distance:.2g}"


def _compile(blocks: Sequence[Any], device: torch.device, *, flex: bool) -> None:
    """Compile the passes of `blocks` at their next call; `flex` replaces their attention."""
    # The cached tables of positions become part of the compiled code.
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    for block in blocks:
        if flex:
            block.attention = FlexAttention(block.attention, device)
        block.compile(backend=_BACKEND, dynamic=False)


def _results(block: nn.Module, x: Tensor, starts: Tensor | None) -> Iterator[Tensor]:
    """Yield the output, the gradient of the input and the gradients of the parameters."""
    block.train()
    entry = x.detach().clone().requires_grad_()
    output = activations(block(entry if starts is None else (entry, starts)))
    yield output.detach()
    yield from torch.autograd.grad(output.float().square().mean(), [entry, *block.parameters()])


def _distance(ours: Tensor, reference: Tensor) -> float:
    scale = float(reference.float().norm())
    return float((ours.float() - reference.float()).norm()) / scale if scale else 0.0
