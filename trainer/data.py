"""A corpus in Megatron's indexed format (version 1), and the batches that a rank takes from it.

`<prefix>.bin` is all tokens one after the other; `<prefix>.idx` says their type, and where each document lies.
Samples are cut from the stream of all documents: sample n is the tokens from n·sequence on, and one more as label.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from trainer.errors import Refused
from trainer.order import Order

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")  # version, type of a token, sequences, entries in the list of documents
TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class Corpus:
    """The tokens at `prefix`, mapped and not read. Raises Refused if index and data do not fit each other."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.tokens = _tokens(Path(f"{prefix}.bin"), Path(f"{prefix}.idx"))

    def samples(self, sequence: int) -> int:
        """Samples of `sequence` tokens in one epoch."""
        return max(0, (len(self.tokens) - 1) // sequence)

    def sample(self, number: int, sequence: int) -> npt.NDArray[np.int64]:
        """Tokens of one sample and the one after it, [sequence + 1]."""
        start = number * sequence
        return self.tokens[start : start + sequence + 1].astype(np.int64)


def _tokens(data: Path, index: Path) -> npt.NDArray[np.generic]:
    try:
        with index.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Refused(f"{index} is not an index in Megatron's format (it starts otherwise)")
            version, code, sequences, documents = _HEADER.unpack(file.read(_HEADER.size))
            lengths = np.frombuffer(file.read(4 * sequences), dtype=np.int32)
        size, index_size = data.stat().st_size, index.stat().st_size
    except (OSError, struct.error, ValueError) as error:
        raise Refused(f"corpus {data.with_suffix('')} cannot be read: {error}") from error
    if version != 1 or code not in TYPES:
        raise Refused(f"{index}: version {version} and token type {code} are not known here (version 1; {list(TYPES)})")
    expected = len(MAGIC) + _HEADER.size + 12 * sequences + 8 * documents
    if index_size != expected:
        raise Refused(f"{index} has {index_size} bytes, and should have {expected} for {sequences} sequences")
    dtype, total = np.dtype(TYPES[code]), int(lengths.sum(dtype=np.int64))
    if size != total * dtype.itemsize:
        raise Refused(f"{data} has {size} bytes, and its index tells of {total} tokens of {dtype.itemsize} bytes")
    return np.memmap(data, dtype=dtype, mode="r") if total else np.zeros(0, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """What one data-parallel rank feeds to its pipeline; the same on every stage."""

    corpus: Corpus
    order: Order
    sequence: int
    vocabulary: int
    micro_batch: int
    data_rank: int
    data_ranks: int

    def step(self, consumed: int, accumulation: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The `accumulation` micro-batches of the step that starts after `consumed` samples.

        Each is tokens and labels, [micro_batch, sequence] both. A step's samples are dealt out in the same order
        whatever the number of ranks.
        """
        for turn in range(accumulation):
            first = consumed + (turn * self.data_ranks + self.data_rank) * self.micro_batch
            rows = np.stack([self._row(position) for position in range(first, first + self.micro_batch)])
            yield torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def _row(self, position: int) -> npt.NDArray[np.int64]:
        number = self.order.sample(position)
        row = self.corpus.sample(number, self.sequence)
        if row.max() >= self.vocabulary or row.min() < 0:
            raise Refused(
                f"corpus {self.corpus.prefix}: sample {number} holds token {row.max()}, and the model's vocabulary "
                f"has {self.vocabulary}"
            )
        return row
