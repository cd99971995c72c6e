"""Output of entries, stored for some days, bounded in bytes and files."""

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.base.errors import RunDirError
from opsctl.cron.cron_dir import CronDir
from opsctl.settings.cron import CronSettings
from opsctl.state.files import create
from opsctl.state.run_dir import all_trains

KEEP_BYTES = 1 << 20
"""Limit for one run of one entry."""
TOTAL_BYTES = 64 << 20
"""Limit for all output files."""
ABANDONED_AFTER_S = 86_400.0
"""Age at which a temporary file has lost its writer."""
TEMPORARY = re.compile(r"\.lease\.[0-9a-f]{32}(\.broken)?|\..+\.[a-z0-9_]{8}")
"""Names of lease files and of half-written files."""
PLACES = ("", "switches/", "requests/", "heartbeat/", "attempts/*/", "revisions/.*/", "checkpoints/", "publish/")
"""Where opsctl writes in a run directory."""


def keep_output(directory: Path, id: str, at: datetime, text: bytes) -> str:
    """Store `text` and return the file's name; empty output makes no file, to save inodes."""
    if not text:
        return ""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", id).strip("-")[:40] or "entry"
    path = directory / f"{at:%Y%m%dT%H%M%S}-{slug}.txt"
    try:
        path.unlink(missing_ok=True)
        create(path, text, mode=0o644)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        return ""
    return path.name


def prune(directory: Path, now: datetime, *, keep: timedelta, files: int, total: int = TOTAL_BYTES) -> int:
    """Remove files older than `keep` and the oldest files beyond `files` or `total` bytes; return the number removed.

    Includes the output of batch scripts. Files that cannot be removed stay.
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
    """Prune output and debug logs, and remove temporary files of killed writers; return the number of files removed.

    Covers the site's directory and this user's trains.
    """
    keep = timedelta(days=settings.keep_days)
    removed = prune(place.output, now, keep=keep, files=settings.keep_files)
    removed += prune(place.site.logs, now, keep=keep, files=settings.keep_files)
    old = now.timestamp() - ABANDONED_AFTER_S
    for path in (*place.site.path.rglob(".*.*"), *_temporary(place.site.path.parent)):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime < old:
                path.unlink()
                removed += 1
    return removed


def _temporary(root: Path) -> Iterator[Path]:
    """Return the temporary files of this user's trains, except in logs and inside checkpoints."""
    with contextlib.suppress(RunDirError):  # reported by the watch cycle
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
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, status.st_size, Path(entry.path)
    except OSError:
        return
