"""Evaluation of the loss on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.trainer.batches import Batches, Data
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.engine import Engine
from opsctl.trainer.rank_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The batches of one set. They depend neither on seed nor on layout, so that evaluations can be compared."""

    name: str
    """Name of the set; empty for the held-out samples."""
    batches: Batches
    batch: int
    """Samples of one batch over all ranks."""
    count: int
    """Batches of one evaluation; fewer than configured if the held-out part is smaller."""

    def loss(self, engine: Engine, *, interrupted: Callable[[], bool]) -> float | None:
        """Return the mean loss of learnt tokens, or None if `interrupted` returned true.

        All ranks call `interrupted` before every batch.
        """
        total = shares = 0.0
        for number in range(self.count):
            if interrupted():
                return None
            consumed = number * self.batch
            share = self.batches.learnt_share(consumed, self.batch)
            total += share * engine.evaluate(self.batches.step(consumed, self.batch), batch=self.batch)
            shares += share
        return total / shares if shares else math.nan


def line(step: int, loss: float, name: str = "") -> str:
    """Return the log line of an evaluation, in Megatron's format."""
    perplexity = math.exp(min(20, loss))
    where = f" on {name}" if name else ""
    return f" validation loss at iteration {step}{where} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} |"


def evaluations(data: Data, layout: Layout, rank: int) -> list[Evaluation]:
    """Return the evaluations of this run: the held-out samples, then the sets; none if `evaluation.every` is 0."""
    config, place = data.config, {"data_rank": layout.data_rank(rank), "data_ranks": layout.data}
    if not config.evaluation.every:
        return []
    held_out = sum(part.samples for part in data.held_out)
    found = [_evaluation(config, "", data.evaluation(**place), held_out)] if held_out else []
    return found + [
        _evaluation(config, name, data.evaluation_set(name, **place), part.samples) for name, part in data.sets.items()
    ]


def _evaluation(config: TrainerConfig, name: str, batches: Batches, samples: int) -> Evaluation:
    batch = config.batch.global_batch
    return Evaluation(name=name, batches=batches, batch=batch, count=min(config.evaluation.batches, samples // batch))
