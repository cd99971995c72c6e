"""Find the checkpoints of a train, of the embedded trainer or any other, with their time and size."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.state.files import MAX_ENTRIES, is_directory, list_entries, list_names
from opsctl.trainer.manifest import list_checkpoints

SKIPPED = (".saving-", "damaged-")
"""Prefixes of unfinished and damaged checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint, a directory or a single file."""

    path: Path
    at: datetime
    """Time of the last write, by the file system's clock."""
    step: int | None = None


def find_saves(directory: Path, *, embedded: bool) -> list[Save]:
    """Return the checkpoints below `directory`, the oldest first; for the embedded trainer, the complete ones.

    Only the files of the newest checkpoint are read: there may be hundreds of checkpoints with thousands of files.
    """
    steps: dict[Path, int | None] = (
        {checkpoint.path: checkpoint.step for checkpoint in list_checkpoints(directory)}
        if embedded
        else dict.fromkeys(_entries(directory))
    )
    found = sorted((path.lstat().st_mtime, path) for path in steps)
    *older, (newest, path) = found or [(0.0, directory)]
    times = {path: at for at, path in older} | ({path: _written(path, newest)} if found else {})
    return [Save(path=path, at=datetime.fromtimestamp(at, UTC), step=steps[path]) for path, at in times.items()]


def _entries(directory: Path) -> list[Path]:
    """Return the directories, or else the files: trainers keep small files such as `latest` next to checkpoints."""
    try:
        names = list_names(directory)
    except FileNotFoundError:
        return []
    paths = [directory / name for name in sorted(names) if not name.startswith((".", *SKIPPED))]
    directories = [path for path in paths if is_directory(path)]
    return directories or paths


def _written(path: Path, at: float) -> float:
    """Return the newest modification of the path and of its direct entries."""
    names = list_names(path) if is_directory(path) else ()
    return max(((path / name).lstat().st_mtime for name in names), default=at)


def size_of(path: Path) -> tuple[int, int]:
    """Return bytes and inodes of a file or a directory tree. Entries that vanish during the walk count 0."""
    if not path.is_dir():
        return path.lstat().st_size, 1
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in _below(path)]
    return sum(sizes), len(sizes) + 1


def _below(path: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [path]
    while waiting:
        try:
            entries = list_entries(waiting.pop(), max_entries=MAX_ENTRIES)
        except FileNotFoundError:
            continue
        yield from entries
        waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
