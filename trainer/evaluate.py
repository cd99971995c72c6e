"""The loss on what is held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.trainer.batches import Batches, Data
from opsctl.trainer.engine import Engine
from opsctl.trainer.rank_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The same samples each time, whatever the seed and the layout: one evaluation can be held beside another."""

    batches: Batches
    batch: int
    """Samples of one batch, over all ranks."""
    count: int
    """Batches of one evaluation; fewer where less is held out."""

    def loss(self, engine: Engine, *, interrupted: Callable[[], bool]) -> float | None:
        """Mean loss; None if `interrupted`, asked before each batch on all ranks, said so."""
        total = 0.0
        for number in range(self.count):
            if interrupted():
                return None
            total += engine.evaluate(self.batches.step(number * self.batch, self.batch), batch=self.batch)
        return total / self.count


def line(step: int, loss: float) -> str:
    """Megatron's line."""
    perplexity = math.exp(min(20, loss))
    return f" validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"


def evaluation(data: Data, layout: Layout, rank: int) -> Evaluation | None:
    """What is evaluated on, or None if never."""
    config = data.config
    if not config.evaluation.every:
        return None
    batch, samples = config.batch.global_batch, sum(part.samples for part in data.held_out)
    batches = data.evaluation(data_rank=layout.data_rank(rank), data_ranks=layout.data)
    return Evaluation(batches=batches, batch=batch, count=min(config.evaluation.batches, samples // batch))
