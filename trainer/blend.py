"""A blend of several corpora: maps a sample's position to a corpus and to a sample of that corpus.

The map is a pure function of the position, as sample_order is: no state is stored, and a resumed run reads the same
samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import CorpusConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.indexed_corpus import Corpus
from opsctl.trainer.sample_order import SampleOrder

CYCLE = 10_000
"""Samples after which the pattern of corpora repeats; weights are exact to one in CYCLE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPart:
    """Samples `first` to `first + samples - 1` of one corpus."""

    corpus: Corpus
    first: int
    samples: int
    weight: float


def split(corpus: Corpus, *, sequence: int, weight: float, held_out: float) -> tuple[CorpusPart, CorpusPart]:
    """Split a corpus into the training part and the held-out part at its end.

    The held-out part is empty if `held_out` is 0. Raises Refused if a part would have no sample.
    """
    samples = corpus.samples(sequence)
    number = round(samples * held_out)
    if held_out and not number:
        raise Refused(f"corpus {corpus.prefix} has {samples} samples: held_out = {held_out:g} of them is none")
    if samples <= number:
        raise Refused(
            f"corpus {corpus.prefix} has {len(corpus.tokens)} tokens, too few for one sample of {sequence}"
            + (f" besides {number} held out" if number else "")
        )
    return (
        CorpusPart(corpus=corpus, first=0, samples=samples - number, weight=weight),
        CorpusPart(corpus=corpus, first=samples - number, samples=number, weight=weight),
    )


def open_parts(
    config: TrainerConfig, corpus_configs: Sequence[CorpusConfig]
) -> tuple[list[tuple[CorpusPart, CorpusPart]], list[str]]:
    """Open the corpora; return pairs of training and held-out part, and the problems of corpora that failed to open."""
    parts, problems = [], []
    for corpus_config in corpus_configs:
        try:
            corpus = Corpus(corpus_config.prefix)
            corpus.refuse_vocabulary(config.model.vocabulary)
            sequence, held_out = config.model.sequence, config.data.held_out
            parts.append(split(corpus, sequence=sequence, weight=corpus_config.weight, held_out=held_out))
        except Refused as error:
            problems.append(str(error))
    return parts, problems


def mixture_problems(config: TrainerConfig, parts: Sequence[tuple[CorpusPart, CorpusPart]]) -> list[str]:
    """Return the problems of the blend as a whole, one sentence per problem."""
    problems, held_out = [], sum(part.samples for _, part in parts)
    try:
        Blend([part for part, _ in parts], sequence=config.model.sequence, seed=0)
    except Refused as error:
        problems.append(str(error))
    batch = config.batch.global_batch
    if config.evaluation.every and held_out < batch:
        problems.append(
            f"held_out = {config.data.held_out:g} leaves {held_out} samples, less than global_batch = {batch}"
        )
    return problems


class Blend:
    """The samples of `parts`, mixed by weight; every part has its own order and its own epochs."""

    def __init__(self, parts: Sequence[CorpusPart], *, sequence: int, seed: int) -> None:
        self.parts, self._sequence = parts, sequence
        self._orders = [SampleOrder(samples=part.samples, seed=seed + 1_000_003 * n) for n, part in enumerate(parts)]
        self._pattern, self._before = _pattern([part.weight for part in parts])
        self._share = np.bincount(self._pattern, minlength=len(parts))
        for part, share in zip(parts, self._share, strict=True):
            if not share:
                raise Refused(f"corpus {part.corpus.prefix} has less than 1 in {CYCLE} of the weights of its blend")

    @property
    def samples(self) -> int:
        return sum(part.samples for part in self.parts)

    def source(self, position: int) -> tuple[CorpusPart, int]:
        """Return the part, and the sample of its corpus, at `position` of the training order."""
        if len(self.parts) == 1:
            number, index = 0, position
        else:
            cycle, place = divmod(position, CYCLE)
            number = int(self._pattern[place])
            index = cycle * int(self._share[number]) + int(self._before[place])
        part = self.parts[number]
        return part, part.first + self._orders[number].sample(index)

    def row(self, position: int) -> npt.NDArray[np.int64]:
        """Return the tokens of the sample at `position` and the token after them, [sequence + 1]."""
        part, sample = self.source(position)
        return part.corpus.sample(sample, self._sequence)


def _pattern(weights: Sequence[float]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for every place of a cycle, the number of its part and how many earlier places that part has.

    A place goes to the part that is furthest behind its weight.
    """
    shares = np.asarray(weights) / sum(weights)
    taken, pattern, before = np.zeros(len(weights)), np.zeros(CYCLE, np.int64), np.zeros(CYCLE, np.int64)
    for place in range(CYCLE if len(weights) > 1 else 1):
        part = int(np.argmax(shares * (place + 1) - taken))
        pattern[place], before[place] = part, taken[part]
        taken[part] += 1
    return pattern, before
