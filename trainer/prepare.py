"""`python -m trainer.prepare --input PATH… --output PREFIX`: text to a byte-level corpus in Megatron's indexed format.

Each file is a document: its bytes, and 256 for its end. Files come in the order of their paths, so that the same
input gives the same corpus, byte for byte. `PREFIX.idx` is written last: without it there is no corpus.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from trainer.contract import fsync_directory, write_atomic

END_OF_DOCUMENT = 256
_MAGIC = b"MMIDIDX\x00\x00"
_UINT16 = 8


def text_files(inputs: Sequence[Path], *, suffix: str) -> Iterator[Path]:
    """The files among `inputs`, and those ending in `suffix` below its directories, by path; links are not followed."""
    for given in inputs:
        if not given.is_dir():
            yield given
            continue
        found = (Path(top) / name for top, _, names in os.walk(given) for name in names if name.endswith(suffix))
        yield from sorted((path for path in found if path.is_file() and not path.is_symlink()), key=os.fsencode)


def write_corpus(documents: Iterable[bytes], prefix: Path) -> tuple[int, int]:
    """Write `documents`; return how many there were, and how many tokens. Raises OSError, and then leaves no index."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index = prefix.with_name(prefix.name + ".idx")
    index.unlink(missing_ok=True)  # an index of older data must not meet the new data
    lengths: list[int] = []
    handle, part = tempfile.mkstemp(dir=prefix.parent, prefix=f".{prefix.name}.bin.")
    try:
        with os.fdopen(handle, "wb") as file:
            for text in documents:
                file.write(np.frombuffer(text, dtype=np.uint8).astype("<u2").tobytes())
                file.write(END_OF_DOCUMENT.to_bytes(2, "little"))
                lengths.append(len(text) + 1)
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(prefix.with_name(prefix.name + ".bin"))
        fsync_directory(prefix.parent)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    write_atomic(index, _index(lengths))
    return len(lengths), sum(lengths)


def _index(lengths: Sequence[int]) -> bytes:
    """Header; length of each sequence (int32), its offset in bytes (int64), and where each document starts (int64)."""
    sizes = np.asarray(lengths, dtype=np.int32)
    ends = 2 * np.cumsum(sizes, dtype=np.int64)
    header = _MAGIC + struct.pack("<QBQQ", 1, _UINT16, len(sizes), len(sizes) + 1)
    documents = np.arange(len(sizes) + 1, dtype=np.int64)
    return header + sizes.tobytes() + np.concatenate(([0], ends[:-1])).astype(np.int64).tobytes() + documents.tobytes()


def _read(paths: Iterable[Path], *, limit: int | None) -> Iterator[bytes]:
    """The files' contents, without empty ones, until `limit` bytes are reached."""
    total = 0
    for path in paths:
        text = path.read_bytes()
        if not text:
            continue
        if limit is not None and total + len(text) > limit:
            return
        total += len(text)
        yield text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 where there is nothing to write or it cannot be read or written."""
    parser = argparse.ArgumentParser(prog="python -m trainer.prepare", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--input", nargs="+", type=Path, required=True, metavar="PATH", help="files and directories")
    parser.add_argument("--output", type=Path, required=True, metavar="PREFIX", help="path without .bin and .idx")
    parser.add_argument("--suffix", default="", help="of the files taken from directories, such as .py; all if absent")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="take whole files until this many bytes")
    given = parser.parse_args(argv)
    try:
        paths = text_files(given.input, suffix=given.suffix)
        documents, tokens = write_corpus(_read(paths, limit=given.max_bytes), given.output)
    except OSError as error:
        parser.exit(2, f"prepare: {error}\n")
    if not documents:
        parser.exit(2, f"prepare: no text in {' '.join(map(str, given.input))}\n")
    sys.stdout.write(f"{given.output}: {documents} documents, {tokens} tokens\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
