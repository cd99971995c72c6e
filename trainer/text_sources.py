"""The documents in a file, whatever its form: the first bytes decide, and the name only where they leave a doubt.

gzip, bzip2, xz and zstd are decompressed while they are read. Inside may be JSON Lines, a JSON array, one JSON object,
Parquet, or plain text, which is one document. Binary content is refused: its tokens would be garbage.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from opsctl.trainer.errors import Refused, load_library

_PROBE_BYTES = 1 << 16
_ZSTD, _SKIPPABLE, _PARQUET = b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18", b"PAR1"
_MAX_WINDOW_BYTES = 1 << 31
"""The largest window of zstd, of `zstd --ultra --long=31`."""
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
_BOM = b"\xef\xbb\xbf"
_LINE, _ARRAY = re.compile(rb'\s*\{\s*"'), re.compile(rb'\[\s*\{\s*"')
"""What a line of JSON Lines begins with, and an array of objects."""
_PROBED_LINES = 100
_MAX_FIRST_LINE_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20
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
            start = probe.removeprefix(_BOM).lstrip()
            if start.startswith(b"{") and b"\n" not in start:
                start += file.readline(_MAX_FIRST_LINE_BYTES)
        with _open_decompressed(path, first) as file:
            yield from _read_text(path, file, start, key)
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Refused(f"{path}: the compressed data is damaged or cut short ({error})") from error


def _open_decompressed(path: Path, first: bytes) -> IO[bytes]:
    for magic, opener in _COMPRESSIONS.items():
        if first.startswith(magic):
            return cast("IO[bytes]", opener(path, "rb"))
    if first.startswith(_ZSTD) or (first[1:4] == _SKIPPABLE and first[0] >> 4 == 5):
        return io.BufferedReader(_ZstdFile(path, load_library("zstandard", path, extra="data")), _PROBE_BYTES)
    return path.open("rb")


class _ZstdFile(io.RawIOBase):
    """The content of all frames. Raises EOFError if the last frame is cut short, which zstandard's reader does not."""

    def __init__(self, path: Path, library: Any) -> None:
        self._file, self._library = path.open("rb"), library
        self._decompressor, self._left, self._is_within = self._new_frame(), memoryview(b""), False

    def _new_frame(self) -> Any:
        return self._library.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            packed = self._file.read(_PROBE_BYTES)
            if not packed:
                if self._is_within:
                    raise EOFError("zstd frame ended too early")
                return 0
            self._left = memoryview(b"".join(self._decompress(packed)))
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _decompress(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            try:
                yield self._decompressor.decompress(packed)
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from error
            packed, self._is_within = self._decompressor.unused_data, not self._decompressor.eof
            if self._decompressor.eof:
                self._decompressor = self._new_frame()

    def close(self) -> None:
        self._file.close()
        super().close()


def _refuse_binary(path: Path, probe: bytes) -> None:
    for magic, what in _NO_TEXT.items():
        if probe.startswith(magic):
            raise Refused(f"{path} is {what}")
    control = len(probe) - len(probe.translate(None, _CONTROL))
    if b"\0" in probe or control > _MAX_CONTROL_SHARE * len(probe):
        raise Refused(f"{path} is binary, no text")


def _read_text(path: Path, file: IO[bytes], start: bytes, key: str | None) -> Iterator[bytes | NoDocument]:
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix not in _COMPRESSED_NAMES), "").lower()
    if suffix in {".jsonl", ".ndjson"} or _is_json_lines(start, key="" if suffix == ".json" else key or ""):
        yield from _read_lines(path, file, key)
    elif suffix == ".json" or key is None or _ARRAY.match(start):
        yield from _read_array(path, _read_at_most(file, _MAX_JSON_BYTES + 1), key)
    else:
        yield file.read().removeprefix(_BOM)


def _read_at_most(file: IO[bytes], size: int) -> bytes:
    """Read in pieces: a single read of `size` bytes takes that much memory, however short the file is."""
    data = bytearray()
    while len(data) < size and (piece := file.read(min(_PIECE_BYTES, size - len(data)))):
        data += piece
    return bytes(data)


def _is_json_lines(start: bytes, *, key: str) -> bool:
    """Whether the first line is an object with `key`, or most lines begin as objects and some are, with any key."""
    lines = [line for line in start.split(b"\n")[:_PROBED_LINES] if line.strip()]
    if not lines or not _LINE.match(lines[0]):
        return False
    first = _parse(lines[0])
    if isinstance(first, dict) and (not key or key in first):
        return True
    begun = sum(_LINE.match(line) is not None for line in lines)
    return begun > max(1, len(lines) / 2) and any(isinstance(_parse(line), dict) for line in lines)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _read_lines(path: Path, lines: Iterable[bytes], key: str | None) -> Iterator[bytes | NoDocument]:
    for number, line in enumerate(lines, start=1):
        if text := line.removeprefix(_BOM).strip():
            place = f"{path}:{number}"
            try:
                yield _pick(json.loads(text), key, place)
            except (ValueError, RecursionError) as error:
                yield NoDocument(place, f"{error!s:.200}")


def _read_array(path: Path, content: bytes, key: str | None) -> Iterator[bytes | NoDocument]:
    if len(content) > _MAX_JSON_BYTES:
        raise Refused(f"{path}: a JSON array of over {_MAX_JSON_BYTES >> 30} GiB; convert it to JSON Lines")
    try:
        loaded = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is neither JSON nor JSON Lines: {error}") from error
    for number, item in enumerate(loaded if isinstance(loaded, list) else [loaded]):
        yield _encode(item) if isinstance(item, str) and key else _pick(item, key, f"{path}[{number}]")


def _read_parquet(path: Path, key: str | None) -> Iterator[bytes | NoDocument]:
    parquet, arrow = (load_library(name, path, extra="data") for name in ("pyarrow.parquet", "pyarrow"))
    try:
        file = parquet.ParquetFile(path)
        if key is not None and key not in file.schema_arrow.names:
            raise Refused(f"{path}: no column {key!r}; it has {', '.join(file.schema_arrow.names)} (--json-key)")
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=None if key is None else [key])
        for row, item in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches)):
            yield _pick(item, key, f"{path} row {row}")
    except arrow.ArrowException as error:
        raise Refused(f"{path}: {error}") from error


def _pick(item: Any, key: str | None, place: str) -> bytes | NoDocument:
    """Return the text under `key`, or without a key the place and the item as JSON; else why there is no text."""
    if key is None:
        return json.dumps([place, item], default=str).encode()
    if not isinstance(item, dict):
        return NoDocument(place, f"no object: {_shorten(item)}")
    if key not in item:
        return NoDocument(place, f"no key {key!r}; it has {_shorten(', '.join(item))}")
    if not isinstance(item[key], str):
        return NoDocument(place, f"no text: {_shorten(item[key])}")
    return _encode(item[key])


def _shorten(value: Any) -> str:
    return f"{value if isinstance(value, str) else json.dumps(value, default=str):.80}"


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")
