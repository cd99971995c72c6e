"""Evaluation of the loss on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.trainer.batches import Batches, Data
from opsctl.trainer.engine import Engine
from opsctl.trainer.rank_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The held-out batches. They depend neither on the seed nor on the layout, so that evaluations can be compared."""

    batches: Batches
    batch: int
    """Samples of one batch over all ranks."""
    count: int
    """Batches of one evaluation; fewer than configured if the held-out part is smaller."""

    def loss(self, engine: Engine, *, interrupted: Callable[[], bool]) -> float | None:
        """Return the mean loss, or None if `interrupted` returned true; all ranks call it before every batch."""
        total = 0.0
        for number in range(self.count):
            if interrupted():
                return None
            total += engine.evaluate(self.batches.step(number * self.batch, self.batch), batch=self.batch)
        return total / self.count


def line(step: int, loss: float) -> str:
    """Return the log line of an evaluation, in Megatron's format."""
    perplexity = math.exp(min(20, loss))
    return f" validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"


def evaluation(data: Data, layout: Layout, rank: int) -> Evaluation | None:
    """Return the evaluation of this run, or None if `evaluation.every` is 0."""
    config = data.config
    if not config.evaluation.every:
        return None
    batch, samples = config.batch.global_batch, sum(part.samples for part in data.held_out)
    batches = data.evaluation(data_rank=layout.data_rank(rank), data_ranks=layout.data)
    return Evaluation(batches=batches, batch=batch, count=min(config.evaluation.batches, samples // batch))
