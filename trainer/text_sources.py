"""The documents in a file, whatever its form: the first bytes decide, and the name only where they leave a doubt.

gzip, bzip2, xz and zstd are decompressed while they are read. Inside may be JSON Lines, a JSON array, one JSON object,
Parquet, or plain text, which is one document. Binary content is refused: its tokens would be garbage.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from opsctl.trainer.errors import Refused

_PROBE_BYTES = 1 << 16
_ZSTD, _PARQUET = b"\x28\xb5\x2f\xfd", b"PAR1"
_COMPRESSIONS: dict[bytes, Callable[[Path, str], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive",
    b"MMIDIDX": "the index of a corpus that is prepared already",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "text in UTF-16: convert it to UTF-8",
    b"\xfe\xff": "text in UTF-16: convert it to UTF-8",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"%PDF": "a PDF",
}
_CONTROL = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b\b"))
_MAX_CONTROL_SHARE = 0.05
"""Control characters in text are rare; compressed data has one in nine."""
_COMPRESSED_NAMES = {".gz", ".zst", ".bz2", ".xz"}
_MAX_JSON_BYTES = 1 << 30
"""An array is read whole. A larger one should be JSON Lines."""
_PARQUET_ROWS = 1024
_DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)


@dataclass(frozen=True, slots=True)
class NoDocument:
    """A place in a file that has no text where a document should be."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place} ({self.why})"


def read_documents(path: Path, key: str | None) -> Iterator[bytes | NoDocument]:
    """Yield the documents of a file, in JSON and Parquet the texts under `key`; yield the places without a text.

    Without a key, the whole objects are documents: JSON of [place, object]. Raises OSError. Raises Refused if the file
    as a whole is no text.
    """
    with path.open("rb") as file:
        first = file.read(16)
    try:
        if first.startswith(_PARQUET):
            yield from _read_parquet(path, key)
            return
        with _open_decompressed(path, first) as file:
            probe = file.read(_PROBE_BYTES)
        _refuse_binary(path, probe)
        with _open_decompressed(path, first) as file:
            yield from _read_text(path, file, probe.lstrip(b"\xef\xbb\xbf \t\r\n"), key)
    except _DAMAGED as error:
        raise Refused(f"{path}: the compressed data is damaged or cut short ({error})") from error


def _open_decompressed(path: Path, first: bytes) -> IO[bytes]:
    for magic, opener in _COMPRESSIONS.items():
        if first.startswith(magic):
            return cast("IO[bytes]", opener(path, "rb"))
    if first.startswith(_ZSTD):
        decompressor = _import("zstandard", path).ZstdDecompressor()
        return io.BufferedReader(decompressor.stream_reader(path.open("rb"), read_across_frames=True))
    return path.open("rb")


def _import(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused(f"{path}: needs {name} (pip install 'opsctl-slurm[data]')") from error


def _refuse_binary(path: Path, probe: bytes) -> None:
    for magic, what in _NO_TEXT.items():
        if probe.startswith(magic):
            raise Refused(f"{path} is {what}")
    control = len(probe) - len(probe.translate(None, _CONTROL))
    if b"\0" in probe or control > _MAX_CONTROL_SHARE * len(probe):
        raise Refused(f"{path} is binary, no text")


def _read_text(path: Path, file: IO[bytes], start: bytes, key: str | None) -> Iterator[bytes | NoDocument]:
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix not in _COMPRESSED_NAMES), "")
    if suffix in {".jsonl", ".ndjson"} or _starts_with_object(start, key="" if suffix == ".json" else key or ""):
        yield from _read_lines(path, file, key)
    elif suffix == ".json" or key is None:
        yield from _read_array(path, file.read(_MAX_JSON_BYTES + 1), key)
    else:
        yield file.read()


def _starts_with_object(start: bytes, *, key: str) -> bool:
    """Return whether the first line is a whole JSON object, with `key` if given; a line may outlast the probe."""
    line, newline, _ = start.partition(b"\n")
    if not newline and len(start) > _PROBE_BYTES // 2:
        return line.startswith(b"{") and f'"{key}"'.encode() in line
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(item, dict) and (not key or key in item)


def _read_lines(path: Path, lines: Iterable[bytes], key: str | None) -> Iterator[bytes | NoDocument]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf")
        if text.strip():
            yield _take_text(f"{path}:{number}", text, key)


def _take_text(place: str, line: bytes, key: str | None) -> bytes | NoDocument:
    try:
        return _pick(json.loads(line), key, place)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return NoDocument(place, f"{error!r:.200}")


def _read_array(path: Path, content: bytes, key: str | None) -> Iterator[bytes | NoDocument]:
    if len(content) > _MAX_JSON_BYTES:
        raise Refused(f"{path}: a JSON array of over {_MAX_JSON_BYTES >> 30} GiB; convert it to JSON Lines")
    try:
        loaded = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is neither JSON nor JSON Lines: {error}") from error
    for number, item in enumerate(loaded if isinstance(loaded, list) else [loaded]):
        place = f"{path}[{number}]"
        try:
            yield _encode(item) if isinstance(item, str) and key else _pick(item, key, place)
        except (KeyError, TypeError, AttributeError) as error:
            yield NoDocument(place, f"{error!r:.200}")


def _read_parquet(path: Path, key: str | None) -> Iterator[bytes | NoDocument]:
    library = _import("pyarrow.parquet", path)
    try:
        file = library.ParquetFile(path)
        if key is not None and key not in file.schema_arrow.names:
            raise Refused(f"{path}: no column {key!r}; it has {', '.join(file.schema_arrow.names)} (--json-key)")
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=None if key is None else [key])
        for row, item in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches)):
            is_text = key is None or isinstance(item[key], str)
            place = f"{path} row {row}"
            yield _pick(item, key, place) if is_text else NoDocument(place, f"{item[key]!r:.200}")
    except importlib.import_module("pyarrow").ArrowException as error:
        raise Refused(f"{path}: {error}") from error


def _pick(item: Any, key: str | None, place: str) -> bytes:
    """Return the text under `key`, or without a key the place and the item as JSON."""
    return _encode(item[key]) if key is not None else json.dumps([place, item], default=str).encode()


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")
