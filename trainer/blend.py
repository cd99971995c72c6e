"""A blend of several corpora: maps a sample's position to a corpus and to a sample of that corpus.

The map is a pure function of the position, as sample_order is: no state is stored, and a resumed run reads the same
samples.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import DataConfig, EvaluationSetConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.indexed_corpus import Corpus
from opsctl.trainer.sample_order import SampleOrder


@dataclass(frozen=True, slots=True)
class _Node:
    left: "_Node | int"
    """A node, or the number of a corpus."""
    right: "_Node | int"
    part: int
    whole: int
    """part / whole is the share of `left` in the samples of this node: integers, for floats are not exact."""

    def count_left(self, samples: int) -> int:
        return (2 * samples * self.part + self.whole) // (2 * self.whole)


class Mixture:
    """The order in which corpora of the given weights take turns: exact at any weight above 0, and a pure function.

    The corpora are the leaves of a Huffman tree. A node deals its samples to its two halves as evenly as whole numbers
    allow: of its first n samples, round(n x share) go left. Every level adds at most half a sample to the deviation of
    the level above times the share, so that a corpus of share s never deviates by 2 samples or more from n x s. No
    cycle repeats, and a weight may be as small as it likes. Memory and time of a lookup grow with the depth of the tree
    only.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._size, self._tree = len(weights), _grow_tree([Fraction(weight) for weight in weights])

    def place(self, position: int) -> tuple[int, int]:
        """Return the number of the corpus at `position`, and how many earlier positions that corpus has."""
        node = self._tree
        while isinstance(node, _Node):
            before, through = node.count_left(position), node.count_left(position + 1)
            if through > before:
                node, position = node.left, before
            else:
                node, position = node.right, position - before
        return node, position

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first `samples` positions every corpus has."""
        counts, open_nodes = [0] * self._size, [(self._tree, samples)]
        while open_nodes:
            node, total = open_nodes.pop()
            if isinstance(node, _Node):
                left = node.count_left(total)
                open_nodes += [(node.left, left), (node.right, total - left)]
            else:
                counts[node] = total
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPart:
    """Samples `first` to `first + samples - 1` of one corpus."""

    corpus: Corpus
    first: int
    samples: int


def split(corpus: Corpus, *, sequence: int, held_out: float) -> tuple[CorpusPart, CorpusPart]:
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
        CorpusPart(corpus=corpus, first=0, samples=samples - number),
        CorpusPart(corpus=corpus, first=samples - number, samples=number),
    )


def _open(prefix: str, config: TrainerConfig) -> Corpus:
    corpus = Corpus(prefix)
    corpus.refuse_vocabulary(config.model.vocabulary)
    corpus.refuse_sequence(config.model.sequence, separate_documents=config.data.separate_documents)
    return corpus


def open_parts(config: TrainerConfig, prefixes: Sequence[str]) -> tuple[list[tuple[CorpusPart, CorpusPart]], list[str]]:
    """Open the corpora; return pairs of training and held-out part, and the problems of corpora that failed to open."""
    parts, problems = [], []
    for prefix in prefixes:
        try:
            corpus = _open(prefix, config)
            parts.append(split(corpus, sequence=config.model.sequence, held_out=config.data.held_out))
        except Refused as error:
            problems.append(str(error))
    return parts, problems


def held_out_problems(config: TrainerConfig, parts: Sequence[tuple[CorpusPart, CorpusPart]]) -> list[str]:
    """Return the problems of the held-out parts as a whole, one sentence per problem."""
    held_out, batch = sum(part.samples for _, part in parts), config.batch.global_batch
    if config.evaluation.every and config.data.held_out and held_out < batch:
        return [f"held_out = {config.data.held_out:g} leaves {held_out} samples, less than global_batch = {batch}"]
    return []


def open_sets(config: TrainerConfig, tables: Sequence[EvaluationSetConfig]) -> tuple[dict[str, CorpusPart], list[str]]:
    """Open the corpora of evaluation sets, whole; return them by name, and their problems."""
    sets, problems, batch = {}, [], config.batch.global_batch
    for table in tables if config.evaluation.every else []:
        try:
            corpus = _open(table.prefix, config)
        except Refused as error:
            problems.append(str(error))
            continue
        samples = corpus.samples(config.model.sequence)
        if samples < batch:
            problems.append(f"evaluation set {table.name} has {samples} samples, less than global_batch = {batch}")
        sets[table.name] = CorpusPart(corpus=corpus, first=0, samples=samples)
    return sets, problems


class Turns:
    """Which corpus has its turn at a position, over all stages. Corpora are numbered as in DataConfig.corpora."""

    def __init__(self, data: DataConfig) -> None:
        numbers = {prefix: number for number, prefix in enumerate(data.corpora())}
        self._stages: list[_Stage] = []
        for start, weights in data.blends():
            corpora, mixture = [numbers[prefix] for prefix in weights], Mixture(list(weights.values()))
            earlier = self.counts(start) if self._stages else [0] * len(numbers)
            self._stages.append(_Stage(start=start, corpora=corpora, mixture=mixture, earlier=earlier))

    def place(self, position: int) -> tuple[int, int]:
        """Return the number of the corpus at `position`, and how many earlier positions that corpus has."""
        stage = self._stage_of(position)
        member, index = stage.mixture.place(position - stage.start)
        corpus = stage.corpora[member]
        return corpus, stage.earlier[corpus] + index

    def counts(self, samples: int) -> list[int]:
        """Return how many of the first `samples` positions every corpus has."""
        stage = self._stage_of(samples)
        counts = list(stage.earlier)
        for corpus, count in zip(stage.corpora, stage.mixture.counts(samples - stage.start), strict=True):
            counts[corpus] += count
        return counts

    def _stage_of(self, position: int) -> "_Stage":
        return self._stages[bisect_right(self._stages, position, key=lambda stage: stage.start) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    start: int
    corpora: Sequence[int]
    """The number of every corpus of the mixture."""
    mixture: Mixture
    earlier: Sequence[int]
    """Positions that every corpus has before `start`."""


class Blend:
    """The samples of `parts` in turns; every part has its own order and its own epochs."""

    def __init__(self, parts: Sequence[CorpusPart], turns: Turns, *, sequence: int, seed: int) -> None:
        self.parts, self._turns, self.sequence = parts, turns, sequence
        self._orders = [SampleOrder(samples=part.samples, seed=seed + 1_000_003 * n) for n, part in enumerate(parts)]

    def source(self, position: int) -> tuple[CorpusPart, int]:
        """Return the part, and the sample of its corpus, at `position` of the training order."""
        number, index = self._turns.place(position)
        part = self.parts[number]
        return part, part.first + self._orders[number].sample(index)

    def positions(self, samples: int) -> dict[str, int]:
        """Return how many of the first `samples` samples come from every corpus, by prefix; skipped samples count."""
        prefixes = (part.corpus.prefix for part in self.parts)
        return dict(zip(prefixes, self._turns.counts(samples), strict=True))

    @property
    def learns_all(self) -> bool:
        """Whether the model learns every token of all corpora."""
        return all(part.corpus.learnt is None for part in self.parts)


def _grow_tree(weights: Sequence[Fraction]) -> _Node | int:
    """Join the two lightest until one is left; equal weights are joined in the order of their numbers."""
    heap: list[tuple[Fraction, int, _Node | int]] = [(weight, n, n) for n, weight in enumerate(weights)]
    heapq.heapify(heap)
    for number in range(len(weights), 2 * len(weights) - 1):
        light, _, right = heapq.heappop(heap)
        heavy, _, left = heapq.heappop(heap)
        share = heavy / (light + heavy)
        heapq.heappush(heap, (light + heavy, number, _Node(left, right, share.numerator, share.denominator)))
    return heap[0][2]
