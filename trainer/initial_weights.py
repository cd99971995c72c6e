"""Initial weights: normal numbers that do not depend on the layout, of which every rank draws only its slice.

A matrix is a stack of blocks along the axis that tensor ranks cut. Every block has a generator of its own, so a rank
draws the blocks that its slice touches and no others.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from opsctl.trainer.sample_order import mix

_BLOCK = 128
"""Rows of a block."""
_is_drawn: ContextVar[bool] = ContextVar("is_drawn", default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A matrix of normal numbers that depend on shape, `std`, `seed` and the cut axis alone."""

    rows: int
    columns: int
    std: float
    seed: int

    def draw(self, part: range, *, dim: int = 0) -> Tensor:
        """Return the rows `part` of the matrix, or the columns with `dim` = 1; NaN inside `left_out`."""
        total, width = (self.rows, self.columns) if dim == 0 else (self.columns, self.rows)
        stack = torch.empty(len(part), width)
        if not _is_drawn.get():
            stack.fill_(torch.nan)
            return stack if dim == 0 else stack.t().contiguous()
        for number in range(part.start // _BLOCK, -(-part.stop // _BLOCK)):
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, total)
            start, stop = max(first, part.start), min(last, part.stop)
            block = torch.empty(last - first, width).normal_(std=self.std, generator=self._generator(number))
            stack[start - part.start : stop - part.start] = block[start - first : stop - first]
        return stack if dim == 0 else stack.t().contiguous()

    def _generator(self, block: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(mix(self.seed) + block))  # torch takes 32 bits of a seed


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Draw nothing inside the block: a checkpoint or a published model replaces every weight.

    Weights are NaN until then, so that no run can go on with a weight that was not replaced.
    """
    token = _is_drawn.set(False)
    try:
        yield
    finally:
        _is_drawn.reset(token)
