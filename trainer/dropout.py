"""What is dropped: a pure function of the seed, the sample and the layer, as the order of samples is of the seed.

So it does not depend on stages or data-parallel ranks, on where a run was cut, or on whether a block is run again for
its gradient. The micro-batch counts, and tensor ranks do: each drops in attention heads of its own.
"""

from __future__ import annotations

import torch

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.sample_order import mix

BASE = 1 << 20
"""More than there are layers: DeepSpeed hands over BASE x (turn + 2) + layer.

Its count of layers starts again in each group that is recomputed, so layers tell themselves apart, by `vary`.
"""


class Seeds:
    """Seeds torch before each layer of each micro-batch; DeepSpeed's `seed_fn`."""

    def __init__(self, config: TrainerConfig, layout: Layout, rank: int) -> None:
        assert config.seed is not None  # drawn, if it was not given
        self._seed, self._micro_batch = config.seed, config.batch.micro_batch
        self._data_rank, self._data_ranks = layout.data_rank(rank), layout.data
        self._consumed = 0

    def start(self, consumed: int) -> None:
        """A step begins after `consumed` samples; DeepSpeed counts its turns from 0 again."""
        self._consumed = consumed

    def __call__(self, number: int) -> None:
        turn = int(number) // BASE - 2  # a number of numpy would overflow in what follows
        first = self._consumed + (turn * self._data_ranks + self._data_rank) * self._micro_batch
        torch.manual_seed(mix(mix(self._seed) + first))


def vary(layer_seed: int) -> None:
    """From here on draw what this layer draws for the micro-batch that was seeded."""
    torch.manual_seed(mix(torch.initial_seed() ^ mix(layer_seed)))
