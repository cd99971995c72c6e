"""Read and write a corpus in Megatron's indexed format, version 1.

`<prefix>.bin` holds all tokens in sequence; `<prefix>.idx` holds the type of tokens and the position of every document.
`<prefix>.json` is an optional addition of this trainer. The file records the size of the vocabulary, so that a model
with a smaller vocabulary is refused at the start. `<prefix>.learnt` is there for packed conversations: a byte per
token, 1 where the model learns to write the token. The index is written last: without the index there is no corpus.
"""

import json
import os
import struct
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.atomic_files import fsync_directory, write_atomic
from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.errors import Refused

MAGIC = b"MMIDIDX\x00\x00"
_TYPES: dict[int, tuple[type[np.integer[Any]], ...]] = {
    1: (np.uint8,),
    2: (np.int8,),
    3: (np.int16,),
    4: (np.int32,),
    5: (np.int64,),
    6: (np.uint16,),
    7: (np.uint32,),
    8: (np.uint16, np.uint64),
}
"""Types of tokens by their code in the index.

Megatron-LM and BLOOM's Megatron-DeepSpeed write uint16 as 8; DeepSpeed's copy of the format writes uint16 as 6 and
uint64 as 8. The size of the data decides between the two.
"""
_UINT16, _INT32 = 8, 4
_HEADER = struct.Struct("<QBQQ")  # version, type of a token, sequences, entries in the list of documents
_LENGTHS_AT = len(MAGIC) + _HEADER.size
"""Where the lengths of sequences begin in the index; then come the begins of sequences, and the first of documents."""
_PROBED_TOKENS = 1 << 22
_MAX_FACTS_BYTES = 1 << 20


class Corpus:
    """The tokens at `prefix`, memory-mapped. Raises Refused if index and data do not match."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self._index = prefix, Path(f"{prefix}.idx")
        try:
            self.tokens = self._open_tokens(Path(f"{prefix}.bin"))
        except OSError as error:
            raise Refused(f"corpus {prefix} cannot be read: {error}") from error
        self.facts = read_facts(Path(prefix))
        self.learnt = _learnt(Path(f"{prefix}.learnt"), len(self.tokens), is_packed="sequence" in self.facts)
        """1 for every token that the model learns to write; None if it learns all."""

    def samples(self, sequence: int) -> int:
        """Return the number of samples of `sequence` tokens in one epoch."""
        return max(0, (len(self.tokens) - (self.learnt is None)) // sequence)

    def sample(self, number: int, sequence: int) -> npt.NDArray[np.int64]:
        """Return the tokens of a sample and the token after them, [sequence + 1]; no token is after the last packed."""
        start = number * sequence
        row = self.tokens[start : start + sequence + 1].astype(np.int64)
        return row if len(row) > sequence else np.append(row, row[-1:])

    def learnt_labels(self, number: int, sequence: int) -> npt.NDArray[np.uint8]:
        """Return 1 for every label of a sample that the model learns, [sequence]."""
        labels = np.ones(sequence, dtype=np.uint8)
        if self.learnt is not None:
            start = number * sequence + 1
            labels[-1] = 0  # that of the next sample's first token, or of none
            labels[:-1] = self.learnt[start : start + sequence - 1]
        return labels

    def _open_tokens(self, data: Path) -> npt.NDArray[np.generic]:
        size = data.stat().st_size
        code, self._sequences, self._documents = _read_header(self._index)
        total = int(self.lengths().sum(dtype=np.int64))
        dtype = next((kind for kind in map(np.dtype, _TYPES[code]) if size == total * kind.itemsize), None)
        if dtype is None:
            width = np.dtype(_TYPES[code][0]).itemsize
            raise Refused(f"{data} has {size} bytes, but its index records {total} tokens of {width} bytes")
        return np.memmap(data, dtype=dtype, mode="r") if total else np.zeros(0, dtype=dtype)

    def lengths(self) -> npt.NDArray[np.int32]:
        """Return the number of tokens of every sequence, which is a document in a corpus of `prepare`."""
        return np.memmap(self._index, np.int32, mode="r", offset=_LENGTHS_AT, shape=(self._sequences,))

    def starts(self, number: int, sequence: int) -> npt.NDArray[np.int64]:
        """Return the place in a sample at which the document of every token begins, [sequence]; 0 if before."""
        first, width = number * sequence, self.tokens.itemsize
        sequences, documents = self._begins
        every = range(len(documents) - 1)  # the last entry is the end of the last document

        def begin(document: int) -> int:
            return int(sequences[documents[document]])

        low = bisect_right(every, first * width, key=begin)
        high = bisect_left(every, (first + sequence) * width, key=begin)
        starts = np.zeros(sequence, dtype=np.int64)
        for document in range(low, high):
            place = begin(document) // width - first
            starts[place] = place
        return np.maximum.accumulate(starts)

    @cached_property
    def _begins(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The begin of every sequence in bytes, and the first sequence of every document, both memory-mapped."""
        begins = _LENGTHS_AT + 4 * self._sequences
        firsts = begins + 8 * self._sequences
        return (
            np.memmap(self._index, np.int64, mode="r", offset=begins, shape=(self._sequences,)),
            np.memmap(self._index, np.int64, mode="r", offset=firsts, shape=(self._documents,)),
        )

    def refuse_sequence(self, sequence: int, *, separate_documents: bool) -> None:
        """Raise Refused if the corpus is packed into sequences of another length, or would be read as running text."""
        if self.learnt is None:
            return
        packed = self.facts.get("sequence")
        if packed != sequence:
            length = "unknown length" if packed is None else f"{packed} tokens"
            raise Refused(
                f"corpus {self.prefix} is packed into sequences of {length}, and the model's sequence is "
                f"{sequence}: prepare the corpus again with --chat {sequence}"
            )
        if not separate_documents:
            raise Refused(
                f"corpus {self.prefix} holds packed conversations, which would attend to each other: set "
                "[trainer.data] separate_documents = true"
            )

    def refuse_vocabulary(self, vocabulary: int) -> None:
        """Raise Refused if the corpus needs a larger vocabulary, by `<prefix>.json` or by a probe of the tokens."""
        known = self.facts.get("vocabulary")
        if isinstance(known, int) and known > vocabulary:
            raise Refused(f"corpus {self.prefix} has a vocabulary of {known}, and the model's has {vocabulary}")
        stride = max(1, len(self.tokens) // _PROBED_TOKENS)
        ndarray = self.tokens[::stride] if stride < 8 else self.tokens[:_PROBED_TOKENS]
        highest = int(ndarray.max(initial=0))
        if highest >= vocabulary:
            raise Refused(f"corpus {self.prefix} holds token {highest}, and the model's vocabulary has {vocabulary}")


def read_facts(prefix: Path) -> Mapping[str, Any]:
    """Return what `<prefix>.json` states; nothing if the file is missing or invalid."""
    try:
        facts = json.loads(read_bounded(prefix.with_name(prefix.name + ".json"), _MAX_FACTS_BYTES, follow=True))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _read_header(index: Path) -> tuple[int, int, int]:
    """Return the type of a token and the numbers of sequences and of entries of documents. Raises OSError, Refused."""
    with index.open("rb") as file:
        size, head = os.fstat(file.fileno()).st_size, file.read(_LENGTHS_AT)
    if not head.startswith(MAGIC):
        raise Refused(f"{index} is not an index in Megatron's format (it starts otherwise)")
    if size < _LENGTHS_AT:
        raise Refused(f"{index} has {size} bytes, and its header alone {_LENGTHS_AT}")
    version, code, sequences, documents = _HEADER.unpack_from(head, len(MAGIC))
    wrong = [f"version {version} (known is 1)"] if version != 1 else []
    wrong += [f"token type {code} (known are 1 to 8)"] if code not in _TYPES else []
    if wrong:
        raise Refused(f"{index} is of {' and '.join(wrong)}")
    expected = _LENGTHS_AT + 12 * sequences + 8 * documents
    if size != expected:
        raise Refused(f"{index} has {size} bytes, and should have {expected} for {sequences} sequences")
    return code, sequences, documents


def _learnt(path: Path, tokens: int, *, is_packed: bool) -> npt.NDArray[np.uint8] | None:
    try:
        size = path.stat().st_size if is_packed or path.exists() else None
    except OSError as error:
        raise Refused(f"corpus {path.with_suffix('')} is of conversations, and cannot be read: {error}") from error
    if size not in (None, tokens):
        raise Refused(f"{path} has {size} bytes, and should have one for each of {tokens} tokens")
    if size is None:
        return None
    return np.memmap(path, dtype=np.uint8, mode="r") if tokens else np.zeros(0, dtype=np.uint8)


def token_type(vocabulary: int) -> tuple[int, np.dtype[Any]]:
    """Return the code and the type in which Megatron writes tokens of a vocabulary of this size."""
    return (_UINT16, np.dtype(np.uint16)) if vocabulary < 65500 else (_INT32, np.dtype(np.int32))


def write_corpus(
    documents: Iterable[npt.NDArray[Any]],
    prefix: Path,
    *,
    vocabulary: int,
    facts: Mapping[str, Any] | None = None,
    is_packed: bool = False,
) -> tuple[int, int]:
    """Write a corpus of `documents`, one array of tokens per document; return the numbers of documents and of tokens.

    `facts` go into `<prefix>.json`. `is_packed`: a document is [2, tokens], and its second row goes into
    `<prefix>.learnt`. Raises OSError, and the exceptions of `documents`: then an earlier corpus remains in place, or,
    if the disk failed at the very end, there is no index.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index = prefix.with_name(prefix.name + ".idx")
    (code, dtype), lengths = token_type(vocabulary), array("i")
    suffixes = {".bin": dtype} | ({".learnt": np.dtype(np.uint8)} if is_packed else {})
    with ExitStack() as stack:
        parts = {suffix: stack.enter_context(_open_part(prefix, suffix)) for suffix in suffixes}
        for document in documents:
            for (suffix, part), row in zip(parts.items(), np.atleast_2d(document), strict=True):
                part.write(row.astype(suffixes[suffix]).tobytes())
            lengths.append(document.shape[-1])
        for part in parts.values():
            part.flush()
            os.fsync(part.fileno())
        index.unlink(missing_ok=True)  # an index of older data must not meet the new data
        prefix.with_name(prefix.name + ".learnt").unlink(missing_ok=True)
        for suffix, part in parts.items():
            os.fchmod(part.fileno(), 0o644)
            Path(part.name).replace(prefix.with_name(prefix.name + suffix))
    fsync_directory(prefix.parent)
    sizes = np.asarray(lengths, dtype=np.int32)
    total = int(sizes.sum(dtype=np.int64))
    about = {"vocabulary": vocabulary, "documents": len(sizes), "tokens": total, **(facts or {})}
    write_atomic(prefix.with_name(prefix.name + ".json"), json.dumps(about, indent=1, sort_keys=True) + "\n")
    write_atomic(index, _index(sizes, code, dtype.itemsize))
    return len(sizes), total


@contextmanager
def _open_part(prefix: Path, suffix: str) -> Iterator[IO[bytes]]:
    """Open a file of a corpus under another name, and remove it unless it was renamed."""
    with tempfile.NamedTemporaryFile(dir=prefix.parent, prefix=f".{prefix.name}{suffix}.", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def _index(sizes: npt.NDArray[np.int32], code: int, width: int) -> bytes:
    """Return the index: header, lengths of sequences (int32), offsets in bytes and starts of documents (int64)."""
    ends = width * np.cumsum(sizes, dtype=np.int64)
    offsets = np.concatenate((np.zeros(min(1, len(sizes)), dtype=np.int64), ends[:-1]))
    header = MAGIC + _HEADER.pack(1, code, len(sizes), len(sizes) + 1)
    return header + sizes.tobytes() + offsets.tobytes() + np.arange(len(sizes) + 1, dtype=np.int64).tobytes()
