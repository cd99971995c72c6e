"""The batches that a rank takes from the corpora.

Samples are cut from the stream of all documents of a corpus: sample n is the tokens from n·sequence on, and one more
as label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from opsctl.trainer.blend import Blend, CorpusPart, mixture_problems, open_parts
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.sample_order import taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """What one data-parallel rank feeds to its pipeline; the same on every stage."""

    blend: Blend
    vocabulary: int
    micro_batch: int
    data_rank: int
    data_ranks: int
    skipped: Sequence[range] = ()

    def after(self, consumed: int, batch: int) -> int:
        """Samples consumed by the end of the step that begins after `consumed`; those passed over count as well."""
        return taken(consumed, batch, self.skipped)[-1] + 1

    def step(self, consumed: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's micro-batches of the step of `batch` samples that begins after `consumed`.

        Each is tokens and labels, [micro_batch, sequence] both. A step's samples are dealt out in the same order
        whatever the number of ranks.
        """
        positions = taken(consumed, batch, self.skipped)
        for first in range(self.data_rank * self.micro_batch, batch, self.data_ranks * self.micro_batch):
            rows = np.stack([self._row(position) for position in positions[first : first + self.micro_batch]])
            yield torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def _row(self, position: int) -> npt.NDArray[np.int64]:
        row = self.blend.row(position)
        if row.max() >= self.vocabulary or row.min() < 0:
            part, sample = self.blend.source(position)
            token = row.min() if row.min() < 0 else row.max()
            raise Refused(
                f"corpus {part.corpus.prefix}: sample {sample} holds token {token}, and the model's vocabulary "
                f"has {self.vocabulary}"
            )
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The corpora of a run, opened and checked."""

    trained: Sequence[CorpusPart]
    held_out: Sequence[CorpusPart]
    config: TrainerConfig

    def __str__(self) -> str:
        """What the order of samples depends on, besides the seed; without paths, for corpora may move."""
        parts = (f"{len(p.corpus.tokens)} tokens, {p.samples} samples x {p.weight:g}" for p in self.trained)
        return "; ".join(parts)

    def training(self, config: TrainerConfig, *, data_rank: int, data_ranks: int) -> Batches:
        """What this data-parallel rank trains on, in the order of the seed of `config`."""
        assert config.seed is not None  # drawn, if it was not given
        skipped = config.data.skipped()
        return self._batches(
            self.trained, seed=config.seed, data_rank=data_rank, data_ranks=data_ranks, skipped=skipped
        )

    def evaluation(self, *, data_rank: int, data_ranks: int) -> Batches:
        """What this data-parallel rank is evaluated on; the same whatever the seed, so that runs can be compared."""
        return self._batches(self.held_out, seed=0, data_rank=data_rank, data_ranks=data_ranks, skipped=())

    def _batches(
        self, parts: Sequence[CorpusPart], *, seed: int, data_rank: int, data_ranks: int, skipped: Sequence[range]
    ) -> Batches:
        return Batches(
            blend=Blend(parts, sequence=self.config.model.sequence, seed=seed),
            vocabulary=self.config.model.vocabulary,
            micro_batch=self.config.batch.micro_batch,
            data_rank=data_rank,
            data_ranks=data_ranks,
            skipped=skipped,
        )


def open_data(config: TrainerConfig) -> Data:
    """The corpora of `config`.

    Raises Refused, with numbers and every problem, if one is not whole, too small or not for this model, or if they
    cannot be mixed as they should.
    """
    parts, problems = open_parts(config, config.data.corpora())
    problems = problems or mixture_problems(config, parts)
    if problems:
        raise Refused("; ".join(problems))
    return Data(trained=[part for part, _ in parts], held_out=[part for _, part in parts], config=config)
