"""Tensor parallelism: matrices, vocabulary and attention heads cut over the ranks of one stage.

Inputs and outputs of a block are whole and identical on all tensor ranks; inside a block every rank works on its slice.
With one tensor rank the functions are the plain operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from opsctl.trainer.initial_weights import Normal
from opsctl.trainer.rank_layout import Layout

_SEED_MASK = (1 << 64) - 1
"""The largest seed that torch accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The part of cut tensors that this rank holds, and the group of ranks that hold all parts."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def range(self, total: int) -> range:
        """Return the range of rows, columns or heads, out of `total`, on this rank."""
        part = total // self.size
        return range(self.rank * part, (self.rank + 1) * part)

    def of(self, whole: Tensor, *, dim: int) -> Tensor:
        """Return a copy of this rank's part of `whole` along `dim`."""
        here = self.range(whole.shape[dim])
        return whole.narrow(dim, here.start, len(here)).clone()

    def sum(self, x: Tensor, *, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Sum `x` over the group, in place and without autograd; return `x`."""
        if self.size > 1:
            dist.all_reduce(x, op=op, group=self.group)
        return x

    @contextlib.contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Make every rank draw its own random numbers inside the block; outside, all tensor ranks draw the same."""
        if self.size == 1:
            yield
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(torch.initial_seed() + (self.rank + 1) * 0x9E3779B9 & _SEED_MASK)
            yield


def slice_of(layout: Layout, rank: int) -> Slice:
    """Return the slice of `rank`. Creates process groups, so all ranks must call this function."""
    if layout.tensor == 1:
        return Slice()
    ranks = [range(first, first + layout.tensor) for first in range(0, layout.world, layout.tensor)]
    groups = [dist.new_group(list(members)) for members in ranks]
    return Slice(rank=layout.tensor_rank(rank), size=layout.tensor, group=groups[rank // layout.tensor])


class _Copy(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """The identity forward; backward, the sum of the ranks' shares of the gradient.

    Use only right before a matrix product: its gradient has no other user, so that the sum may be in place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Slice) -> Tensor:
        ctx.part = part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.part.sum(gradient.contiguous()), None


class _Sum(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """The sum of the ranks' shares of the result forward; the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Slice) -> Tensor:
        ctx.mark_dirty(x)
        return part.sum(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def into(x: Tensor, part: Slice) -> Tensor:
    """Return `x`, whole on every rank, as input of sliced layers."""
    return x if part.size == 1 else _Copy.apply(x, part)


def out_of(x: Tensor, part: Slice) -> Tensor:
    """Return the sum over the ranks of the output `x` of sliced layers; in place."""
    return x if part.size == 1 else _Sum.apply(x, part)


class ColumnLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A linear layer cut along its outputs: whole input, this rank's part of the output."""

    def __init__(self, weight: Normal, part: Slice, *, bias: bool = True) -> None:
        super().__init__()
        self.part = part
        self.weight = sliced(weight, part, dim=0)
        self.bias = _marked(torch.zeros(len(part.range(weight.rows))), part) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(into(x, self.part), self.weight, self.bias)


class RowLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A linear layer cut along its inputs: this rank's part of the input, whole output; the bias is whole."""

    def __init__(self, weight: Normal, part: Slice, *, bias: bool = True) -> None:
        super().__init__()
        self.part = part
        self.weight = sliced(weight, part, dim=1)
        self.bias = nn.Parameter(torch.zeros(weight.rows)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.part.size == 1:
            return functional.linear(x, self.weight, self.bias)
        summed = out_of(functional.linear(x, self.weight), self.part)
        return summed if self.bias is None else summed + self.bias


def sliced(whole: Normal, part: Slice, *, dim: int) -> nn.Parameter:
    """Return this rank's slice of `whole`, cut along `dim`, as a parameter."""
    return _marked(whole.draw(part.range(whole.columns if dim else whole.rows), dim=dim), part)


def _marked(slice_: Tensor, part: Slice) -> nn.Parameter:
    """Return a parameter with the mark that makes DeepSpeed count every slice in the gradient's norm."""
    parameter = nn.Parameter(slice_)
    parameter.model_parallel = part.size > 1
    return parameter


def embedding(tokens: Tensor, weight: Tensor, part: Slice) -> Tensor:
    """Return the vectors of `tokens`; this rank holds a part of the vocabulary."""
    if part.size == 1:
        return functional.embedding(tokens, weight)
    local, elsewhere = local_rows(tokens, weight.shape[0], part)
    return out_of(functional.embedding(local, weight).masked_fill(elsewhere.unsqueeze(-1), 0), part)


def local_rows(tokens: Tensor, rows: int, part: Slice) -> tuple[Tensor, Tensor]:
    """Return the local row of every token (0 for tokens of other ranks), and the mask of tokens of other ranks."""
    shifted = tokens - part.rank * rows
    elsewhere = (shifted < 0) | (shifted >= rows)
    return shifted.masked_fill(elsewhere, 0), elsewhere
