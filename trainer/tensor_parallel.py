"""Tensor parallelism: matrices, vocabulary and attention heads cut over the ranks of one stage.

What a block takes in and gives out is whole and the same on all of these ranks; in between each works on its slice.
With one rank all of it is what it would be without.
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

from opsctl.trainer.rank_layout import Layout

_SEEDS = (1 << 64) - 1
"""What torch takes: a seed above it raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Which part this rank holds of everything that is cut, and the group that holds the rest."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def range(self, total: int) -> range:
        """The part of `total` rows, columns or heads that is here."""
        part = total // self.size
        return range(self.rank * part, (self.rank + 1) * part)

    def of(self, whole: Tensor, *, dim: int) -> Tensor:
        """This rank's part of `whole` along `dim`, in memory of its own."""
        here = self.range(whole.shape[dim])
        return whole.narrow(dim, here.start, len(here)).clone()

    def sum(self, x: Tensor, *, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """`x` summed over the group, without a gradient of its own; takes the place of `x`."""
        if self.size > 1:
            dist.all_reduce(x, op=op, group=self.group)
        return x

    @contextlib.contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Inside, each rank draws its own random numbers; before and after, all draw the same."""
        if self.size == 1:
            yield
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(torch.initial_seed() + (self.rank + 1) * 0x9E3779B9 & _SEEDS)
            yield


def slice_of(layout: Layout, rank: int) -> Slice:
    """The slice that `rank` holds. Makes process groups: all ranks together."""
    if layout.tensor == 1:
        return Slice()
    ranks = [range(first, first + layout.tensor) for first in range(0, layout.world, layout.tensor)]
    groups = [dist.new_group(list(each)) for each in ranks]
    return Slice(rank=layout.tensor_rank(rank), size=layout.tensor, group=groups[rank // layout.tensor])


class _Copy(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """Into the slices: forward as it is; backward, each rank knows only its share of the gradient.

    Right before a product alone: the gradient that one gives is nobody else's, and is summed where it lies.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Slice) -> Tensor:
        ctx.part = part
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.part.sum(gradient.contiguous()), None


class _Sum(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """Out of the slices: forward, each rank knows only its share of the result; backward as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Slice) -> Tensor:
        ctx.mark_dirty(x)
        return part.sum(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def into(x: Tensor, part: Slice) -> Tensor:
    """`x`, whole on every rank, as the input of sliced work."""
    return x if part.size == 1 else _Copy.apply(x, part)


def out_of(x: Tensor, part: Slice) -> Tensor:
    """The sum over the ranks of what sliced work gave; takes the place of `x`."""
    return x if part.size == 1 else _Sum.apply(x, part)


class ColumnLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A matrix and a bias whose outputs are cut: whole input, this rank's part of the output."""

    def __init__(self, weight: Tensor, part: Slice) -> None:
        super().__init__()
        self.part = part
        self.weight = sliced(weight, part, dim=0)
        self.bias = sliced(torch.zeros(weight.shape[0]), part, dim=0)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(into(x, self.part), self.weight, self.bias)


class RowLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A matrix whose inputs are cut, and a bias that is not: this rank's part of the input, whole output."""

    def __init__(self, weight: Tensor, part: Slice) -> None:
        super().__init__()
        self.part = part
        self.weight = sliced(weight, part, dim=1)
        self.bias = nn.Parameter(torch.zeros(weight.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.part.size == 1:
            return functional.linear(x, self.weight, self.bias)
        return out_of(functional.linear(x, self.weight), self.part) + self.bias


def sliced(whole: Tensor, part: Slice, *, dim: int) -> nn.Parameter:
    """A parameter that is cut along `dim`, marked so that DeepSpeed counts every slice in the gradient's norm."""
    parameter = nn.Parameter(part.of(whole, dim=dim) if part.size > 1 else whole)
    parameter.model_parallel = part.size > 1
    return parameter


def embedding(tokens: Tensor, weight: Tensor, part: Slice) -> Tensor:
    """Vectors of `tokens`, where this rank holds a part of the vocabulary."""
    if part.size == 1:
        return functional.embedding(tokens, weight)
    local, elsewhere = _local(tokens, weight.shape[0], part)
    return out_of(functional.embedding(local, weight).masked_fill(elsewhere.unsqueeze(-1), 0), part)


def _local(tokens: Tensor, rows: int, part: Slice) -> tuple[Tensor, Tensor]:
    """Row of each token here (0 if it is not), and which tokens are held elsewhere."""
    shifted = tokens - part.rank * rows
    elsewhere = (shifted < 0) | (shifted >= rows)
    return shifted.masked_fill(elsewhere, 0), elsewhere


def cross_entropy(scores: Tensor, labels: Tensor, part: Slice) -> Tensor:
    """Mean cross entropy in fp32 of scores [b, s, part of the vocabulary] against labels [b, s]."""
    flat, wanted = scores.float().flatten(0, 1), labels.flatten()
    if part.size == 1:
        return functional.cross_entropy(flat, wanted)
    return _CrossEntropy.apply(flat, wanted, part).mean()


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """Of each row; no rank ever holds the scores of the whole vocabulary."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, part: Slice) -> Tensor:
        highest = part.sum(scores.amax(dim=1), op=dist.ReduceOp.MAX)
        shifted = scores - highest.unsqueeze(1)
        local, elsewhere = _local(labels, scores.shape[1], part)
        wanted = part.sum(shifted.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0))
        chances = shifted.exp_()
        total = part.sum(chances.sum(dim=1))
        chances /= total.unsqueeze(1)
        ctx.save_for_backward(chances, local, elsewhere)
        return total.log() - wanted

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        chances, local, elsewhere = ctx.saved_tensors
        one_hot = torch.zeros_like(chances).scatter_(1, local.unsqueeze(1), (~elsewhere).to(chances.dtype).unsqueeze(1))
        return (chances - one_hot) * gradient.unsqueeze(1), None, None
