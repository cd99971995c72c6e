"""Random numbers that do not depend on the layout: initial weights and the seeds of dropout.

A matrix of initial weights is a stack of blocks along the axis that tensor ranks cut. Every block has another
generator, so a rank draws the blocks that its slice touches and no others.

Dropout is a pure function of the run's seed, the sample and the layer: it does not depend on stages, on data-parallel
ranks, on resumes, or on recomputation. It depends on the size of the micro-batch and on tensor ranks: every tensor rank
draws for its own attention heads, and with sequence parallelism for its own slice of the sequence.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import Layout
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


BASE = 1 << 20
"""Upper limit of the number of layers: DeepSpeed passes BASE x (turn + 2) + layer to the seed function.

DeepSpeed counts layers from 0 in every recomputed group, so that layers add their own seed, by `vary`.
"""


class Seeds:
    """DeepSpeed's `seed_fn`: seeds torch before every layer of every micro-batch."""

    def __init__(self, config: TrainerConfig, layout: Layout, rank: int) -> None:
        assert config.seed is not None  # choose_seed() has drawn a missing seed
        self._seed, self._micro_batch = config.seed, config.batch.micro_batch
        self._data_rank, self._data_ranks = layout.data_rank(rank), layout.data
        self._tensor_rank = layout.tensor_rank(rank) if config.parallel.sequence_parallel else None
        self._consumed = 0

    def start(self, consumed: int) -> None:
        """Begin the step after `consumed` samples; DeepSpeed counts its turns from 0 again."""
        self._consumed = consumed

    def __call__(self, number: int) -> None:
        turn = int(number) // BASE - 2  # int: a numpy integer would overflow below
        first = self._consumed + (turn * self._data_ranks + self._data_rank) * self._micro_batch
        seed = mix(mix(self._seed) + first)
        torch.manual_seed(seed if self._tensor_rank is None else mix(seed ^ mix(self._tensor_rank + 1)))


def vary(layer_seed: int) -> None:
    """Seed torch for one layer of the current micro-batch."""
    torch.manual_seed(mix(torch.initial_seed() ^ mix(layer_seed)))
