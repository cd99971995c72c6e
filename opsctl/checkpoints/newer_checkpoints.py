"""Set the checkpoints after a step aside, so that a trainer resumes from this step, and bring them back.

Nothing is deleted. Entries are renamed into a hidden directory beside them, which trainers pass over. Every function
may be interrupted at any line and called again.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import RunDirError, cannot_write
from opsctl.checkpoints.layouts import fill_pattern, load_layouts
from opsctl.checkpoints.scan import FoundCheckpoint
from opsctl.state.files import MAX_ENTRIES, find_matches, list_names, make_directory, read_text, write_atomic
from opsctl.trainer.atomic_files import fsync_directory

MAX_POINTER_BYTES = 4096
_NEWEST_NAME = re.compile(r"(?:last|latest|newest)(?:[-_.].*)?|(?:.*[-_.])(?:last|latest|newest)(?:\.\w+)?|ckpt\.pt")
"""Names of entries that hold the newest state, and no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The file that names the newest checkpoint."""

    path: Path
    text: str
    """What the file has to hold after the rollback."""


def find_newer(found: Sequence[FoundCheckpoint], chosen: FoundCheckpoint) -> list[Path]:
    """Return the entries of all checkpoints with a higher step than the chosen one, files and links beside them first.

    In this order an interrupted call of `set_aside` leaves none behind that only its checkpoint leads to.
    """
    assert chosen.step is not None
    newer = [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step > chosen.step]
    paths = [checkpoint.path for checkpoint in newer]
    places = set(map(_place, paths))
    beside: list[Path] = []
    for checkpoint in newer:
        beside += _companions(checkpoint)
    for parent in dict.fromkeys(path.parent for path in paths):
        beside += [link for link in _links_in(parent) if _target(link) in places]
    return list(dict.fromkeys([*(path for path in beside if path not in paths), *paths]))


def find_copies_of_newest(found: Sequence[FoundCheckpoint], chosen: FoundCheckpoint) -> list[Path]:
    """Return entries such as `last.ckpt` that hold a newer state under a name without a step."""
    return [
        checkpoint.path
        for checkpoint in found
        if checkpoint.step is None
        and not checkpoint.path.is_symlink()
        and _NEWEST_NAME.fullmatch(checkpoint.path.name)
        and checkpoint.changed_ns > chosen.changed_ns
    ]


def find_pointer(chosen: FoundCheckpoint, *, file: str = "", text: str = "") -> Pointer | None:
    """Return the file that names the newest checkpoint: `file` with `text`, else that of the layout; None if none."""
    if file:
        return Pointer(path=chosen.path.parent / file, text=text)
    newest = next((layout.newest for layout in load_layouts() if layout.name == chosen.layout), None)
    if newest is None:
        return None
    return Pointer(
        path=chosen.path.parent / newest.file, text=chosen.path.name if newest.holds == "name" else str(chosen.step)
    )


def set_aside(paths: Iterable[Path], chosen: Path, aside: str, pointer: Pointer | None) -> list[Path]:
    """Rename `paths` into the directory `aside` beside each; return the new paths. Links then lead to `chosen`.

    Raises RunDirError.
    """
    moved: list[Path] = []
    parents = [path.parent for path in paths]
    try:
        if pointer:
            _point_to(pointer, aside)
            parents.append(pointer.path.parent)
        for path in paths:
            directory = _make(path.parent / aside)
            # A train that somebody released after an interruption has saved the same step again.
            target = directory / path.name if path.is_symlink() else _free_name(directory, path.name)
            path.rename(target)
            moved.append(target)
        for parent in dict.fromkeys([*parents, chosen.parent]):
            _restore_links(parent, aside, chosen)
            _sync(parent)
    except OSError as error:
        raise cannot_write(Path(error.filename or chosen.parent), error) from error
    return moved


def bring_back(parent: Path, aside: str, replaced: str) -> list[Path]:
    """Rename the entries of `parent/aside` back; return their paths. What has taken a name goes to `parent/replaced`.

    Raises RunDirError.
    """
    source = parent / aside
    back: list[Path] = []
    try:
        if source.is_dir():
            _check_own(source)
        for name in sorted(list_names(source, max_entries=MAX_ENTRIES)) if source.is_dir() else ():
            target = parent / name
            if target.exists() or target.is_symlink():
                target.rename(_free_name(_make(parent / replaced), name))
            (source / name).rename(target)
            back.append(target)
        if source.is_dir():
            source.rmdir()
        _sync(parent)
    except OSError as error:
        raise cannot_write(Path(error.filename or parent), error) from error
    return back


def _companions(checkpoint: FoundCheckpoint) -> list[Path]:
    """Return the files beside a checkpoint that belong to it."""
    layout = next((layout for layout in load_layouts() if layout.name == checkpoint.layout), None)
    digits = re.findall(r"\d+", checkpoint.path.stem)
    files: list[Path] = []
    for pattern in layout.needs_beside if layout and digits else ():
        files += find_matches(checkpoint.path.parent, fill_pattern(pattern, checkpoint.path.name, digits[-1]))
    return files


def _links_in(directory: Path) -> list[Path]:
    try:
        paths = [directory / name for name in list_names(directory)]
    except OSError:
        return []
    return [path for path in paths if path.is_symlink()]


def _target(link: Path) -> Path | None:
    """Return the place that a link leads to, which may be a further link."""
    try:
        return _place(link.parent / link.readlink())
    except OSError:
        return None


def _place(path: Path) -> Path:
    """Return the one name of an entry, however its directory is named. A link is not followed."""
    return Path(os.path.realpath(path.parent)) / path.name


def _point_to(pointer: Pointer, aside: str) -> None:
    """Keep the first text of the pointer in `aside`, then write the new text."""
    copy = _make(pointer.path.parent / aside) / pointer.path.name
    try:
        text = read_text(pointer.path, MAX_POINTER_BYTES)
    except FileNotFoundError:
        text = ""
    except ValueError as error:
        raise RunDirError(f"{pointer.path}: not a text that names a checkpoint") from error
    if text.strip() == pointer.text:
        return
    if text and not copy.exists():
        write_atomic(copy, text)
    write_atomic(pointer.path, pointer.text + ("\n" if text.endswith("\n") else ""))


def _restore_links(parent: Path, aside: str, chosen: Path) -> None:
    """Make each link that was set aside anew, to the chosen checkpoint, so that a trainer that reads the link resumes
    there."""
    for link in _links_in(parent / aside):
        again = parent / link.name
        if not again.is_symlink() and not again.exists():
            again.symlink_to(chosen.name if chosen.parent == parent else chosen)


def _make(directory: Path) -> Path:
    make_directory(directory, 0o755)
    _check_own(directory)
    return directory


def _check_own(directory: Path) -> None:
    """Refuse a directory that another user can change: in a shared parent anybody can take its name first."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "another user can write there, or has made it", str(directory))


def _free_name(directory: Path, name: str) -> Path:
    """Return a name that is not taken: an interrupted call may have moved the same name before."""
    names = [name, *(f"{name}.{number}" for number in range(1, 1000))]
    return next(
        directory / free for free in names if not (directory / free).is_symlink() and not (directory / free).exists()
    )


def _sync(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        fsync_directory(directory)
