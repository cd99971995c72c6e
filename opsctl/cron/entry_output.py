"""What entries printed: kept for some days, bounded in bytes and in files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.cron.cron_dir import CronDir
from opsctl.settings.cron import CronSettings
from opsctl.state.run_dir import all_trains

KEEP_BYTES = 1 << 20
"""Of one run of one entry."""
TOTAL_BYTES = 64 << 20
"""Of all that is kept."""
LEFT_BEHIND = 86_400.0
"""Seconds after which a temporary file has no writer any more."""
TEMPORARY = re.compile(r"\.lease\.[0-9a-f]{32}(\.broken)?|\..+\.[a-z0-9_]{8}")
"""What a lease is made of, and what becomes a file when it is whole."""
PLACES = ("", "switches/", "requests/", "heartbeat/", "attempts/*/", "revisions/.*/", "checkpoints/", "publish/")
"""Where opsctl writes in a run directory."""


def keep_output(directory: Path, id: str, at: datetime, text: bytes) -> str:
    """The name of the file that has it; none for nothing, for files are what parallel file systems run out of."""
    if not text:
        return ""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", id).strip("-")[:40] or "entry"
    path = directory / f"{at:%Y%m%dT%H%M%S}-{slug}.txt"
    try:
        path.write_bytes(text)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        return ""
    return path.name


def prune(directory: Path, now: datetime, *, keep: timedelta, files: int, total: int = TOTAL_BYTES) -> int:
    """Remove what is older than `keep`, and the oldest of what is more than `files` or `total` bytes; how many went.

    Also what batch scripts wrote there. What cannot be removed stays.
    """
    oldest, removed, room = (now - keep).timestamp(), 0, total
    for number, (mtime, size, path) in enumerate(sorted(_files(directory), reverse=True), 1):
        room -= size
        if mtime < oldest or number > files or room < 0:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
    return removed


def sweep(place: CronDir, now: datetime, settings: CronSettings) -> int:
    """Prune, and remove the temporary files that killed writers left in the site's directory and in those of our
    trains; how many files went."""
    removed = prune(place.output, now, keep=timedelta(days=settings.keep_days), files=settings.keep_files)
    old = now.timestamp() - LEFT_BEHIND
    for path in (*place.site.path.rglob(".*.*"), *_temporary(place.site.path.parent)):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime < old:
                path.unlink()
                removed += 1
    return removed


def _temporary(root: Path) -> Iterator[Path]:
    """In our trains' directories, but in those of a checkpoint and in logs, which are not ours to tidy."""
    for run in all_trains(root):
        with contextlib.suppress(OSError):
            if run.is_ours:
                for place in PLACES:
                    yield from (path for path in run.path.glob(f"{place}.*") if TEMPORARY.fullmatch(path.name))


def _files(directory: Path) -> Iterator[tuple[float, int, Path]]:
    try:
        with os.scandir(directory) as scandir_iterator:
            for entry in scandir_iterator:
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        yield seen.st_mtime, seen.st_size, Path(entry.path)
    except OSError:
        return
