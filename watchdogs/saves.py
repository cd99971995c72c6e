"""The checkpoints of a train, the embedded trainer's and any other's: when, how large, how many files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainer.manifest import checkpoints

SKIPPED = (".saving-", "damaged-")
"""What is not a checkpoint yet, or not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint, a directory or a single file."""

    path: Path
    at: datetime
    """When it was written last, by the file system's clock."""
    step: int | None = None


def saves(directory: Path, *, embedded: bool) -> list[Save]:
    """The checkpoints below `directory`, the oldest first; of the embedded trainer, those that are complete."""
    if embedded:
        found = [Save(path=each.path, at=_written(each.path), step=each.step) for each in checkpoints(directory)]
    else:
        found = [Save(path=path, at=_written(path)) for path in _entries(directory)]
    return sorted(found, key=lambda save: save.at)


def _entries(directory: Path) -> list[Path]:
    """Large things only: trainers keep small files such as `latest` beside their checkpoints."""
    try:
        found = [path for path in directory.iterdir() if not path.name.startswith((".", *SKIPPED))]
    except FileNotFoundError:
        return []
    directories = [path for path in found if path.is_dir()]
    return directories or found


def _written(path: Path) -> datetime:
    """The newest change of it and of what is directly in it."""
    newest = path.stat().st_mtime
    if path.is_dir():
        newest = max((entry.stat().st_mtime for entry in os.scandir(path)), default=newest)
    return datetime.fromtimestamp(newest, UTC)


def size_of(path: Path) -> tuple[int, int]:
    """Bytes and inodes of a file, or of all that is below a directory. What vanishes meanwhile counts nothing."""
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in _below(path)]
    return sum(sizes), len(sizes) + path.is_dir()


def _below(path: Path) -> Iterator[os.DirEntry[str] | Path]:
    if not path.is_dir():
        yield path
        return
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path))
