"""Tensor parallelism: matrices, vocabulary and attention heads cut over the ranks of one stage.

Between the cut matrices, activations are whole and identical on all tensor ranks. With sequence parallelism
(Korthikanti et al. 2022, arXiv 2205.05198) a rank holds its slice of the sequence there: cut matrices begin with an
all-gather and end in a reduce-scatter. With one tensor rank the functions are the plain operations.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from opsctl.trainer.random_numbers import Normal
from opsctl.trainer.rank_layout import Layout

Move: TypeAlias = Callable[[Tensor], Tensor]
_SEED_MASK = (1 << 64) - 1
"""The largest seed that torch accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The part of cut tensors that this rank holds, and the group of ranks that hold all parts."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """None in a trial of one rank, which exchanges nothing: its sums are its own part."""
    cuts_sequence: bool = False
    """Whether a rank holds only its slice of the sequence between the cut matrices."""

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
        if self.group is not None:
            dist.all_reduce(x, op=op, group=self.group)
        return x

    def tokens(self, held: int) -> slice:
        """Return which tokens of a sample the `held` ones are, between the cut matrices."""
        return slice(self.rank * held, (self.rank + 1) * held) if self.cuts_sequence else slice(held)

    def gather(self, x: Tensor) -> Tensor:
        """Return the whole sequence [b, s, h] of the slices [b, s / ranks, h] of all ranks; without autograd."""
        batch, held, width = x.shape
        if self.group is None:
            return x.repeat(1, self.size, 1)
        slices = x.new_empty(self.size * batch, held, width)
        dist.all_gather_into_tensor(slices, x.contiguous(), group=self.group)
        return slices.view(self.size, batch, held, width).transpose(0, 1).reshape(batch, self.size * held, width)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Return this rank's slice [b, s / ranks, h] of the sum of `x` [b, s, h] over the ranks; without autograd."""
        batch, length, width = x.shape
        held = length // self.size
        if self.group is None:
            return x[:, self.tokens(held)].contiguous()
        slices = x.reshape(batch, self.size, held, width).transpose(0, 1).reshape(self.size * batch, held, width)
        summed = x.new_empty(batch, held, width)
        dist.reduce_scatter_tensor(summed, slices.contiguous(), group=self.group)
        return summed

    def sum_all(self, tensors: Sequence[Tensor]) -> None:
        """Sum every one of `tensors` over the group, in place and in one message."""
        together = self.sum(torch.cat([tensor.flatten() for tensor in tensors]))
        for tensor, summed in zip(tensors, together.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))

    @contextlib.contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Make every rank draw its own random numbers inside the block; outside, ranks may draw the same."""
        if self.size == 1:
            yield
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(torch.initial_seed() + (self.rank + 1) * 0x9E3779B9 & _SEED_MASK)
            yield


def slice_of(layout: Layout, rank: int, *, cuts_sequence: bool = False) -> Slice:
    """Return the slice of `rank`. Creates process groups, so all ranks must call this function."""
    if layout.tensor == 1:
        return Slice()
    ranks = [range(first, first + layout.tensor) for first in range(0, layout.world, layout.tensor)]
    groups = [dist.new_group(list(members)) for members in ranks]
    group = groups[rank // layout.tensor]
    return Slice(rank=layout.tensor_rank(rank), size=layout.tensor, group=group, cuts_sequence=cuts_sequence)


class _Across(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """What the tensor ranks do together with a tensor; backward, its counterpart with the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Move, back: Move) -> Tensor:
        ctx.back = back
        moved = there(x)
        if moved is x:
            ctx.mark_dirty(x)
        return moved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


class _GatheredProduct(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """A linear layer of a gathered sequence. Keeps this rank's slice alone, and gathers the sequence again backward."""

    @staticmethod
    def forward(ctx: Any, entry: "Entry", whole: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.part = entry.part
        ctx.save_for_backward(entry.held, weight)
        return functional.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor | None]:
        held, weight = ctx.saved_tensors
        rows, whole = gradient.flatten(0, 1), ctx.part.gather(held).flatten(0, 1)
        bias = rows.sum(0) if ctx.needs_input_grad[3] else None
        return None, gradient @ weight, rows.t() @ whole, bias


# Compiled code stops here: what ranks exchange stays as written.
_across = torch.compiler.disable(_Across.apply)
_gathered_product = torch.compiler.disable(_GatheredProduct.apply)


class Entry(NamedTuple):
    """The input of column layers, which may be several."""

    whole: Tensor
    held: Tensor
    """What this rank holds of it between the cut matrices."""
    part: Slice

    def times(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the product with this rank's rows of a weight."""
        if not self.part.cuts_sequence:
            return functional.linear(self.whole, weight, bias)
        product: Tensor = _gathered_product(self, self.whole, weight, bias)
        return product


def into(x: Tensor, part: Slice) -> Entry:
    """Return `x`, as ranks hold activations between the cut matrices, as input of column layers."""
    if part.size == 1:
        return Entry(x, x, part)
    if part.cuts_sequence:
        return Entry(_across(x, part.gather, part.reduce_scatter), x, part)
    # The sum may be in place: the gradient of a matrix product's input has no other user.
    return Entry(_across(x, lambda x: x.view_as(x), lambda gradient: part.sum(gradient.contiguous())), x, part)


def out_of(x: Tensor, part: Slice) -> Tensor:
    """Return the sum over the ranks of the output `x` of cut layers; in place, unless the sequence is cut."""
    if part.size == 1:
        return x
    there, back = (part.reduce_scatter, part.gather) if part.cuts_sequence else (part.sum, lambda gradient: gradient)
    summed: Tensor = _across(x, there, back)
    return summed


def total(x: Tensor, part: Slice) -> Tensor:
    """Return the sum of `x` over the ranks, on every rank; each has a share of the gradient of the sum."""
    if part.size == 1:
        return x
    summed: Tensor = _across(x, lambda share: part.sum(share.clone()), lambda share: part.sum(share.clone()))
    return summed


class ColumnLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A linear layer cut along its outputs: whole input, this rank's part of the output."""

    def __init__(self, weight: Normal, part: Slice, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = sliced(weight, part, dim=0)
        self.bias = marked(torch.zeros(len(part.range(weight.rows))), part) if bias else None

    def forward(self, entry: Entry) -> Tensor:
        return entry.times(self.weight, self.bias)


class RowLinear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A linear layer cut along its inputs: this rank's part of the input, summed output; the bias is whole."""

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
    return marked(whole.draw(part.range(whole.columns if dim else whole.rows), dim=dim), part)


def marked(slice_: Tensor, part: Slice) -> nn.Parameter:
    """Return a parameter with the mark that makes DeepSpeed count every slice in the gradient's norm."""
    parameter = nn.Parameter(slice_)
    parameter.model_parallel = part.size > 1
    return parameter


def share_gradient(parameter: nn.Parameter) -> nn.Parameter:
    """Mark a whole parameter of which every tensor rank computes a share of the gradient; return the parameter."""
    parameter.has_shared_gradient = True
    return parameter


def shared_gradients(module: nn.Module, part: Slice) -> list[nn.Parameter]:
    """Return the whole parameters whose gradients have to be summed over the tensor ranks once a step.

    With a cut sequence, every whole parameter has seen the tokens of one slice alone.
    """
    whole = [parameter for parameter in module.parameters() if not getattr(parameter, "model_parallel", False)]
    if part.size == 1:
        return []
    return [parameter for parameter in whole if part.cuts_sequence or hasattr(parameter, "has_shared_gradient")]


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
