"""The batches that a rank reads from the corpora, ready before they are needed.

A corpus is one stream of the tokens of all documents. Sample n is `sequence` tokens from position n·sequence, plus one
more token as the last label.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opsctl.trainer.blend import Blend, CorpusPart, Turns, held_out_problems, open_parts, open_sets
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import DataConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.indexed_corpus import Corpus
from opsctl.trainer.manifest import DataOrder
from opsctl.trainer.run_state import RunState
from opsctl.trainer.sample_order import taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The micro-batches of one data-parallel rank; every stage of its pipeline reads the same ones."""

    blend: Blend
    vocabulary: int
    micro_batch: int
    data_rank: int
    data_ranks: int
    skipped: Sequence[range] = ()
    separate_documents: bool = False

    def after(self, consumed: int, batch: int) -> int:
        """Return the samples consumed by the end of the step that begins after `consumed`; skipped samples count."""
        return taken(consumed, batch, self.skipped)[-1] + 1

    def step(self, consumed: int, batch: int) -> Iterator[tuple[Any, Any]]:
        """Yield this rank's micro-batches of the step of `batch` samples that begins after `consumed`.

        A micro-batch is the pair tokens, labels; both are [micro_batch, sequence]. With `separate_documents`, tokens
        are a pair too: tokens, and the starts of their documents. With packed conversations, labels are a pair: labels,
        and their weights in the mean loss. The order of a step's samples does not depend on the number of ranks.
        """
        positions = taken(consumed, batch, self.skipped)
        weights = None if self.blend.learns_all else _weights(self._learnt(positions))
        for first in range(self.data_rank * self.micro_batch, batch, self.data_ranks * self.micro_batch):
            here = positions[first : first + self.micro_batch]
            rows = np.stack([self._row(position) for position in here])
            tokens, labels = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
            inputs: Any = tokens
            if self.separate_documents:
                inputs = tokens, self._read(Corpus.starts, here)
            yield inputs, labels if weights is None else (labels, weights[first : first + self.micro_batch])

    def learnt_share(self, consumed: int, batch: int) -> float:
        """Return the share of learnt labels in the step of `batch` samples that begins after `consumed`."""
        if self.blend.learns_all:
            return 1.0
        return float(self._learnt(taken(consumed, batch, self.skipped)).float().mean())

    def _learnt(self, positions: Sequence[int]) -> torch.Tensor:
        """Return 1 for every learnt label, else 0, [samples, sequence]."""
        return self._read(Corpus.learnt_labels, positions)

    def _read(self, method: Callable[[Corpus, int, int], npt.NDArray[Any]], positions: Sequence[int]) -> torch.Tensor:
        """Return what a method of Corpus reads of every sample, [samples, sequence]."""
        places = map(self.blend.source, positions)
        return torch.from_numpy(np.stack([method(part.corpus, sample, self.blend.sequence) for part, sample in places]))

    def _row(self, position: int) -> npt.NDArray[np.int64]:
        part, sample = self.blend.source(position)
        row = part.corpus.sample(sample, self.blend.sequence)
        if row.max() >= self.vocabulary or row.min() < 0:
            token = row.min() if row.min() < 0 else row.max()
            raise Refused(
                f"corpus {part.corpus.prefix}: sample {sample} holds token {token}, and the model's vocabulary "
                f"has {self.vocabulary}"
            )
        return row


def _weights(learnt: torch.Tensor) -> torch.Tensor:
    """Return the weights of a step's labels, [samples, sequence]: 0 or equal, with a mean of 1.

    The mean of the weighted losses is that of all learnt tokens of the step, however micro-batches share them.
    """
    count = int(learnt.sum())
    return learnt.float() * (learnt.numel() / max(1, count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The corpora of a run, opened and checked."""

    trained: Sequence[CorpusPart]
    held_out: Sequence[CorpusPart]
    sets: Mapping[str, CorpusPart]
    """The corpora of `evaluation.sets` by name."""
    config: TrainerConfig

    @property
    def order(self) -> DataOrder:
        return DataOrder(
            sizes=tuple((len(part.corpus.tokens), part.samples) for part in self.trained),
            weights=tuple((start, tuple(weights.values())) for start, weights in self.config.data.blends()),
        )

    def has_same_past(self, state: RunState) -> bool:
        """Return whether a run with the data of `state` would have read the samples so far in the same order."""
        now, was = self.order, state.data
        if was is None or now == was:
            return True
        common = min(len(now.sizes), len(was.sizes))
        counts = Turns(self.config.data).counts(state.consumed_samples)
        positions = dict(zip(self.config.data.corpora(), counts, strict=True))
        is_same = _without_zeros(positions) == _without_zeros(state.positions)
        return is_same and now.sizes[:common] == was.sizes[:common]

    def training(self, config: TrainerConfig, *, data_rank: int, data_ranks: int) -> Batches:
        """Return the training batches of one data-parallel rank, in the order of the seed of `config`."""
        assert config.seed is not None  # choose_seed() has drawn a missing seed
        blend = Blend(self.trained, Turns(config.data), sequence=config.model.sequence, seed=config.seed)
        return self._batches(blend, data_rank=data_rank, data_ranks=data_ranks, skipped=config.data.skipped())

    def evaluation(self, *, data_rank: int, data_ranks: int) -> Batches:
        """Return the held-out batches of one data-parallel rank, in the mixture of the first stage.

        They do not depend on the seed.
        """
        first = self.config.data.model_copy(update={"stages": []})
        held_out = self.held_out[: len(first.corpora())]
        blend = Blend(held_out, Turns(first), sequence=self.config.model.sequence, seed=0)
        return self._batches(blend, data_rank=data_rank, data_ranks=data_ranks, skipped=())

    def evaluation_set(self, name: str, *, data_rank: int, data_ranks: int) -> Batches:
        """Return the batches of one data-parallel rank from the evaluation set `name`."""
        turns = Turns(DataConfig(prefix=name))
        blend = Blend([self.sets[name]], turns, sequence=self.config.model.sequence, seed=0)
        return self._batches(blend, data_rank=data_rank, data_ranks=data_ranks, skipped=())

    def _batches(self, blend: Blend, *, data_rank: int, data_ranks: int, skipped: Sequence[range]) -> Batches:
        return Batches(
            blend=blend,
            vocabulary=self.config.model.vocabulary,
            micro_batch=self.config.batch.micro_batch,
            data_rank=data_rank,
            data_ranks=data_ranks,
            skipped=skipped,
            separate_documents=self.config.data.separate_documents,
        )


def _without_zeros(positions: Mapping[str, int]) -> dict[str, int]:
    return {prefix: count for prefix, count in positions.items() if count}


def open_data(config: TrainerConfig) -> Data:
    """Open and check the corpora of `config`.

    Raises Refused with every problem: a corpus is incomplete, too small or has another vocabulary, or too little is
    held out.
    """
    parts, problems = open_parts(config, config.data.corpora())
    problems = problems or held_out_problems(config, parts)
    sets, set_problems = open_sets(config, config.evaluation.sets)
    if problems or set_problems:
        raise Refused("; ".join([*problems, *set_problems]))
    return Data(trained=[part for part, _ in parts], held_out=[part for _, part in parts], sets=sets, config=config)


MicroBatch = tuple[torch.Tensor, torch.Tensor]


class ReadAhead:
    """Reads the next step's micro-batches in a thread while this step computes: a slow disk delays no step.

    The samples of a step depend on the consumed samples and the batch alone, so that reading ahead changes nothing.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._expected: tuple[int, int] | None = None
        self._read: Future[list[MicroBatch]] | None = None

    def start(self, consumed: int, batch: int) -> None:
        """Read the micro-batches of the step of `batch` samples after `consumed`, in the background."""
        self._expected = consumed, batch
        self._read = self._thread.submit(lambda: list(self.batches.step(consumed, batch)))

    def step(self, consumed: int, batch: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of a step, as `Batches.step` does, and raise its errors."""
        read, self._read = self._read, None
        if read is None or self._expected != (consumed, batch):
            return self.batches.step(consumed, batch)
        return iter(read.result())


def on_device(batches: Iterator[MicroBatch], device: torch.device) -> Iterator[MicroBatch]:
    """Return micro-batches on the device; for a CPU, as they are."""
    return iter(batches) if device.type == "cpu" else (_copied(micro_batch, device) for micro_batch in batches)


def _copied(value: Any, device: torch.device) -> Any:
    """Return a copy on a GPU of a tensor, or of nested tuples of tensors.

    From pinned memory: a copy from other memory waits until the GPU has done all its work.
    """
    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)
    return tuple(_copied(part, device) for part in value)
