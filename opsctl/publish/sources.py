"""Select the files of a run directory to publish: never a checkpoint, never a file outside the run directory."""

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from opsctl.base.secret_formats import Secrets
from opsctl.state.files import open_regular
from opsctl.state.run_dir import RunDir

GROWING = (".txt", ".log", ".out", ".err", ".jsonl")
TEXT = (*GROWING, ".json", ".md", ".html", ".toml", ".yaml", ".csv", ".sh")
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npz", ".npy")
"""Suffixes of checkpoint files, in any directory."""
COMPRESSED = (".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z")
"""Formats that are not searched for secrets."""
MAX_NAME_BYTES = 240
"""File systems take 255, with those of the temporary name."""
MAX_UNZIPPED_BYTES = 256 << 20
"""Bytes of a gzip file that are searched for secrets."""
OVERLAP_BYTES = 1 << 16
"""Bytes before the published end of a log that are searched too, so that no secret is cut in half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file to publish, with its state at one moment."""

    name: str
    """Its path inside the run directory, and below the train's name at the destination."""
    path: Path
    size: int
    mark: str
    """Changes when the file is replaced or written to."""
    left_out: int = 0
    """Approximate number of bytes at its beginning that are not published."""
    refused: str = ""
    """Why the file is not published; empty for a published file."""


def find_sources(run: RunDir, patterns: Iterable[str], *, most: int) -> list[PublishedFile]:
    """Return the files that match the patterns, sorted by name."""
    paths = set(chain.from_iterable(run.path.glob(pattern) for pattern in patterns))
    sources = (_inspect(run, path, most) for path in paths if path.is_file())
    return sorted(filter(None, sources), key=lambda source: source.name)


def _inspect(run: RunDir, path: Path, most: int) -> PublishedFile | None:
    parts = path.relative_to(run.path).parts
    # Hidden files are temporary or private.
    if any(part.startswith(".") for part in parts) or parts[0] == "publish":
        return None
    try:
        stat, real = path.stat(), path.resolve()
    except OSError:
        return None
    is_text = path.suffix in TEXT
    refused = _refusal(run, path, real)
    if not refused and not is_text and stat.st_size > most:
        refused = f"larger than {most} bytes"
    return PublishedFile(
        name="/".join(parts),
        path=path,
        size=stat.st_size,
        mark=mark_of(stat),
        left_out=max(0, stat.st_size - most) if is_text else 0,
        refused=refused,
    )


def mark_of(stat: os.stat_result) -> str:
    """Return a text that changes when the file is replaced or written to."""
    return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"


def _refusal(run: RunDir, path: Path, real: Path) -> str:
    root = run.path.resolve()
    if root not in real.parents:
        return "points outside the run directory"
    if (root / "checkpoints") in real.parents or path.suffix in WEIGHTS or real.suffix in WEIGHTS:
        return "is part of a checkpoint"
    if path.suffix in COMPRESSED or real.suffix in COMPRESSED:
        return "is compressed, and no secret in it would be found"
    name = os.fsencode(path.relative_to(run.path)).decode("utf-8", "replace")
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        return "its name is too long"
    return "" if name.isprintable() and "�" not in name else "its name is not plain text"


class HoldsSecret(Exception):
    """A binary file that holds a secret, or may hold one. Striking the secret out would damage the file."""


def read(source: PublishedFile, most: int, secrets: Secrets) -> tuple[bytes, int]:
    """Return the published part of a file, and the number of secrets struck out. Raises OSError, HoldsSecret."""
    begin = max(0, source.left_out - OVERLAP_BYTES) if source.left_out else 0
    with os.fdopen(open_regular(source.path, follow=True), "rb") as file:
        file.seek(begin)
        data = file.read(source.size - begin)
    struck, count = secrets.strike(data)
    if source.path.suffix not in TEXT:
        if count or secrets.strike(_unzip(data))[1]:
            raise HoldsSecret("holds a secret, which cannot be struck out of a binary file")
        return data, 0
    if source.path.suffix in GROWING:
        # An incomplete last line may hold half of a secret.
        struck = struck[: struck.rfind(b"\n") + 1]
    published = _cut_to_end(struck, most, source.size) if source.left_out else struck
    return published, count


def _unzip(data: bytes) -> bytes:
    """Return what a gzip file holds; nothing of any other. Raises HoldsSecret where that cannot be known."""
    if not data.startswith(b"\x1f\x8b"):
        return b""
    found, left = bytearray(), data
    while left:
        reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            found += reader.decompress(left, MAX_UNZIPPED_BYTES - len(found) + 1)
        except zlib.error as error:
            raise HoldsSecret(f"cannot be searched for secrets: {error}") from error
        if len(found) > MAX_UNZIPPED_BYTES:
            raise HoldsSecret("is too large to be searched for secrets")
        left = reader.unused_data
    return bytes(found)


def _cut_to_end(data: bytes, most: int, size: int) -> bytes:
    """Return the last lines of `data`, after a line with the number of bytes left out."""
    end = data[-most:]
    end = end[end.find(b"\n") + 1 :]
    return b"[opsctl: about %d bytes before this line are left out]\n" % (size - len(end)) + end
