"""torch.compile for the blocks of a stage, after a trial on the device.

The blocks are compiled in place, so that names of weights, checkpoints and DeepSpeed's view of the model stay the same.
If a block of any rank does not compile, or computes other numbers than before, the whole run stays uncompiled.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.documents import activations
from opsctl.trainer.gpt import build_alibi
from opsctl.trainer.process_groups import Control

_BACKEND = "inductor"
_TOLERANCES = {torch.bfloat16: 0.05, torch.float32: 1e-4}
"""Largest relative distance between a compiled block and itself before: a few roundings of its type."""


class FlexAlibi:
    """Causal attention for one length, with ALiBi's bias computed inside the kernel: no [heads, sequence, sequence].

    Only inside a compiled block: uncompiled, flex_attention keeps all scores in memory.
    """

    def __init__(self, slopes: tuple[float, ...], length: int, device: torch.device) -> None:
        self._slopes = torch.tensor(slopes, device=device)
        self._mask = create_block_mask(_is_visible, None, None, length, length, device=device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the mixed values of q, k and v, all [b, heads, s, width]."""
        slopes = self._slopes

        def biased(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score - slopes[head] * (query - key)

        mixed: Tensor = flex_attention(q, k, v, score_mod=biased, block_mask=self._mask)
        return mixed


def _is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def compile_stage(blocks: Sequence[Any], config: TrainerConfig, device: torch.device, control: Control) -> str:
    """Compile the blocks of every rank if the trials of all ranks succeed; return what failed, to be logged.

    Returns an empty text if nothing failed, or if the config does not ask for compilation. All ranks together.
    """
    reason = _obstacle(config, device)
    if reason is not None:
        return f"blocks are not compiled: {reason}" if reason else ""
    notes = []
    if not config.model.can_separate_documents and device.type == "cuda":
        problem = _try_together(blocks, config, device, control, flex=True)
        if not problem:
            build_alibi.cache_clear()  # the dense bias of the comparison
            return ""
        notes.append(f"flex_attention is not used: {problem}")
    if problem := _try_together(blocks, config, device, control, flex=False):
        notes.append(f"blocks are not compiled: {problem}")
    return "; ".join(notes)


def remove_compilation(module: nn.Module) -> None:
    """Run all blocks as they are written again: the search for a NaN needs hooks, which compiled code skips."""
    for child in module.modules():
        child._compiled_call_impl = None
        if hasattr(child, "flex"):
            child.flex = None


def _obstacle(config: TrainerConfig, device: torch.device) -> str | None:
    """Return why there is no trial; an empty text if the config asks for none, and None if nothing is in the way."""
    if config.compile is False or (config.compile == "auto" and device.type != "cuda"):
        return ""
    if config.model.dropout:
        return "every block seeds its own dropout"
    if config.parallel.tensor > 1:
        return "tensor ranks sum inside of a block"
    return None


def _try_together(
    blocks: Sequence[Any], config: TrainerConfig, device: torch.device, control: Control, *, flex: bool
) -> str:
    """Compile the blocks if a block compiles on every rank that has one; return the first rank's problem."""
    with torch.random.fork_rng(devices=[]):  # a resumed run has restored its random numbers
        problems = control.gather(try_block(blocks[0], config, device, flex=flex) if blocks else "")
    problem = next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")
    if not problem:
        _compile(blocks, config, device, flex=flex)
        torch._dynamo.config.suppress_errors = True  # a later failure, as of evaluation, is logged and not raised
    return problem


def try_block(block: nn.Module, config: TrainerConfig, device: torch.device, *, flex: bool = False) -> str:
    """Compile a copy of `block` and compare its results with those of `block`; return the problem, or an empty text.

    The compiled code serves all blocks of the stage, which have one class and one shape.
    """
    shape = (config.batch.micro_batch, config.model.sequence, config.model.hidden)
    kind = next(block.parameters()).dtype
    torch._dynamo.config.suppress_errors = False
    try:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device=device, dtype=kind)
        starts = _two_documents(config, device) if config.data.separate_documents else None
        compiled = copy.deepcopy(block)
        _compile([compiled], config, device, flex=flex)
        pairs = zip(_results(compiled, x, starts), _results(block, x, starts), strict=True)
        distance = max(_distance(ours, reference) for ours, reference in pairs)
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways, and training can do without them
        return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    return "" if distance <= _TOLERANCES[kind] else f"results of a compiled block are off by {distance:.2g}"


def _compile(blocks: Sequence[Any], config: TrainerConfig, device: torch.device, *, flex: bool) -> None:
    """Compile the passes of `blocks` at their next call; `flex` replaces the dense bias of ALiBi."""
    # The cached tables of positions become part of the compiled code.
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    attention = FlexAlibi(blocks[0].slopes, config.model.sequence, device) if flex and blocks else None
    for block in blocks:
        if attention:
            block.flex = attention
        block.compile(backend=_BACKEND, dynamic=False)


def _two_documents(config: TrainerConfig, device: torch.device) -> Tensor:
    """Return the starts of documents of samples whose second half is a document of its own."""
    places, half = torch.arange(config.model.sequence, device=device), config.model.sequence // 2
    return (half * (places >= half)).expand(config.batch.micro_batch, -1).contiguous()


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
