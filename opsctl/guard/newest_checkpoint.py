"""The newest checkpoint of a train of any trainer, and a mark of it that grows with every new checkpoint."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.checkpoints.scan import MAX_LISTED, FoundCheckpoint, scan_directories
from opsctl.state.files import is_regular, list_entries
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.log_formats import MAX_STEP
from opsctl.telemetry.progress.signs import find_directories
from opsctl.telemetry.progress.train_settings import read_settings
from opsctl.trainer.manifest import find_newest_complete

MAX_ENTRIES_LOOKED_AT = 1000
"""Entries of a directory of unknown layout whose times are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    mark: int
    """Grows with every new checkpoint: its step, or the time of its last change if its name has no step."""
    path: Path
    step: int | None = None
    changed_ns: int = 0
    is_complete: bool = True
    """False if nothing shows whether it is complete."""


def find_newest(run: RunDir) -> NewestCheckpoint | None:
    """Return the newest checkpoint that is not known to be partial; None without one. Never raises OSError.

    Searches the directories that train.toml and the command name.
    """
    if is_regular(run.trainer_config):
        newest = find_newest_complete(run.checkpoints)
        return NewestCheckpoint(mark=newest.step, path=newest.path, step=newest.step) if newest else None
    directories = [found.path for found in find_directories(run, read_settings(run))]
    scan = scan_directories(directories or [run.checkpoints])
    if scan.newest:
        return _to_newest(scan.newest)
    return None if scan.partial else _find_newest_entry(run.checkpoints)


def is_other_kind(mark: int, other: int) -> bool:
    """Return whether of two marks one is a step and one a time, so that their order says nothing."""
    return other >= 0 and (mark < MAX_STEP) != (other < MAX_STEP)


def find_newest_logged(run: RunDir, logged: Sequence[str], since_ns: int) -> NewestCheckpoint | None:
    """Return the newest checkpoint in the directories of `logged` that changed after `since_ns`, None without one.

    Before the log named them, nothing was known of these directories.
    """
    settings = read_settings(run)
    if not logged or settings is None or is_regular(run.trainer_config):
        return None
    known = {found.path for found in find_directories(run, settings)}
    directories = [found.path for found in find_directories(run, settings, logged=logged) if found.path not in known]
    newest = scan_directories(directories).newest if directories else None
    return _to_newest(newest) if newest and newest.changed_ns > since_ns else None


def _to_newest(found: FoundCheckpoint) -> NewestCheckpoint:
    mark = found.changed_ns if found.step is None else found.step
    return NewestCheckpoint(
        mark=mark, path=found.path, step=found.step, changed_ns=found.changed_ns, is_complete=found.is_complete
    )


def _find_newest_entry(directory: Path) -> NewestCheckpoint | None:
    """Return the newest entry of a directory whose layout is not known.

    Of many entries, only those with the highest numbers in their names count: the first step waits for this search.
    """
    newest: NewestCheckpoint | None = None
    try:
        names = [entry.name for entry in list_entries(directory, max_entries=MAX_LISTED)]
    except OSError:
        return None
    numbered = [([int(digits) for digits in re.findall(r"\d{1,18}", name)], name) for name in names if name[0] != "."]
    names = [name for _, name in sorted(numbered, reverse=True)]
    for path in (directory / name for name in names[:MAX_ENTRIES_LOOKED_AT]):
        try:
            changed_ns = path.stat().st_mtime_ns
        except OSError:
            continue
        if newest is None or changed_ns > newest.mark:
            newest = NewestCheckpoint(mark=changed_ns, path=path, changed_ns=changed_ns, is_complete=False)
    return newest
