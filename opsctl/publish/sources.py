"""Which files of a run directory are published, and what of them: never a checkpoint, never a way out of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.publish.redaction import Secrets
from opsctl.state.run_dir import RunDir

GROWING = (".txt", ".log", ".out", ".err", ".jsonl")
TEXT = (*GROWING, ".json", ".md", ".html", ".toml", ".yaml", ".csv", ".sh")
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npz", ".npy")
"""Names of parts of checkpoints, wherever they lie."""
OVERLAP = 1 << 16
"""Bytes before what is kept of a log that are looked at too, so that no secret is cut in half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file to publish, as it was when it was looked at."""

    name: str
    """Its path inside the run directory, and below the train's name where it is published."""
    path: Path
    size: int
    mark: str
    """Another one if the file is another one, or was written to."""
    left_out: int = 0
    """Bytes at its front that are not published, about."""
    refused: str = ""
    """Why it is not published at all."""


def find_sources(run: RunDir, patterns: Iterable[str], *, most: int) -> list[PublishedFile]:
    """What fits the patterns, by name."""
    paths = {path for pattern in patterns for path in run.path.glob(pattern) if path.is_file()}
    published_files = (_source(run, path, most) for path in paths)
    return sorted(
        (published_file for published_file in published_files if published_file), key=lambda source: source.name
    )


def _source(run: RunDir, path: Path, most: int) -> PublishedFile | None:
    parts = path.relative_to(run.path).parts
    # What is hidden is a temporary file, or nobody else's business.
    if any(part.startswith(".") for part in parts) or parts[0] == "publish":
        return None
    try:
        stat, real = path.stat(), path.resolve()
    except OSError:
        return None
    is_text = path.suffix in TEXT
    return PublishedFile(
        name="/".join(parts), path=path, size=stat.st_size, mark=f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}",
        left_out=max(0, stat.st_size - most) if is_text else 0,
        refused=_refusal(run, path, real) or ("" if is_text or stat.st_size <= most else f"larger than {most} bytes"),
    )  # fmt: skip


def _refusal(run: RunDir, path: Path, real: Path) -> str:
    root = run.path.resolve()
    if root not in real.parents:
        return "leads out of the run directory"
    if (root / "checkpoints") in real.parents or path.suffix in WEIGHTS or real.suffix in WEIGHTS:
        return "is part of a checkpoint"
    name = os.fsencode(path.relative_to(run.path)).decode("utf-8", "replace")
    return "" if name.isprintable() and "�" not in name else "its name is not plain text"


class HoldsSecret(Exception):
    """A file that no secret can be struck out of without breaking it."""


def read(source: PublishedFile, most: int, secrets: Secrets) -> tuple[bytes, int]:
    """What is published of a file, and how many secrets were struck out. Raises OSError, HoldsSecret."""
    begin = max(0, source.left_out - OVERLAP) if source.left_out else 0
    with source.path.open("rb") as file:
        file.seek(begin)
        data = file.read(source.size - begin)
    struck, count = secrets.strike(data)
    if source.path.suffix not in TEXT:
        if count:
            raise HoldsSecret("holds a secret, which cannot be struck out of such a file")
        return data, 0
    if source.path.suffix in GROWING:
        # A last line without an end may be half of a secret.
        struck = struck[: struck.rfind(b"\n") + 1]
    return (_end(struck, most, source.size) if source.left_out else struck), count


def _end(data: bytes, most: int, size: int) -> bytes:
    """The last lines of `data`, and a first one that says what is missing."""
    kept = data[-most:]
    kept = kept[kept.find(b"\n") + 1 :]
    return b"[opsctl: some %d bytes before this are left out]\n" % (size - len(kept)) + kept


def tree(directory: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a directory, by its path in it, but temporary ones."""
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not any(part.startswith(".") for part in name.split("/")):
            yield name, path
