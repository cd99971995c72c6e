"""Seeds of dropout: a pure function of the run's seed, the sample and the layer.

Dropout does not depend on stages, on data-parallel ranks, on resumes, or on recomputation. Dropout depends on
the size of the micro-batch and on tensor ranks: every tensor rank draws for its own attention heads, and with sequence
parallelism for its own slice of the sequence.
"""

import torch

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.sample_order import mix

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
