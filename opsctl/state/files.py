"""Open, read, write and list the files below the shared root, where every entry may be another user's.

Only regular files are opened, never through a link, and none is read beyond the bound of its kind. Modes are set on
open files. The functions that need no opsctl live in the trainer, which must not import opsctl.
"""

import contextlib
import errno
import fnmatch
import json
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from opsctl.trainer.atomic_files import fsync_directory, write_atomic
from opsctl.trainer.bounded_files import open_regular, read_bounded

__all__ = ["fsync_directory", "open_regular", "read_bounded", "write_atomic"]

MAX_SETTINGS_BYTES = 4 << 20
"""train.toml, trainer.json, and the scripts of a train."""
MAX_RECORD_BYTES = 4 << 20
"""One record: the start or the end of an attempt, the history of a node, a message in the outbox."""
MAX_STATE_BYTES = 64 << 20
"""The state of many things in one file: the ledgers of alerts and of cron, the state of a publication."""
BROKEN = ".broken"
"""Suffix of a state file that could not be read, when another took its place."""
MAX_NUMBER_BYTES = 100
"""One number: an exit code, the time of the last tick."""
MAX_ENTRIES = 100_000
"""Names read of one directory."""
ARCHIVE_SUFFIX = ".tar.gz"


class Below:
    """A path below the directory `path` of the object that has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, _: object = None) -> Path:
        place: Path = owner.path / self.name
        return place


@contextlib.contextmanager
def closing(handle: int) -> Iterator[int]:
    """Yield an open descriptor, and close it at the end of the block."""
    try:
        yield handle
    finally:
        os.close(handle)


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file. Raises OSError, and ValueError for bytes that are not UTF-8."""
    return read_bounded(path, max_bytes).decode()


def read_number(path: Path) -> int | None:
    """Return the number in a file, such as an exit code; None if there is none."""
    try:
        return int(read_text(path, MAX_NUMBER_BYTES))
    except (OSError, ValueError):
        return None


def read_json(path: Path, max_bytes: int) -> Any:
    """Return the JSON of a regular file. Raises OSError, and ValueError for anything else than JSON."""
    return parse_json(read_bounded(path, max_bytes))


def parse_json(text: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also for JSON that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_objects(text: bytes | str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a text with one JSON value a line. Other lines are skipped."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            if isinstance(value := parse_json(line), dict):
                yield value


def read_with_status(path: Path, max_bytes: int) -> tuple[os.stat_result, bytes]:
    """Return the status and the content of one and the same regular file. Raises OSError, as `read_bounded`."""
    with closing(open_regular(path)) as handle:
        status, data = os.fstat(handle), os.pread(handle, max_bytes + 1, 0)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return status, data


def read_range(path: Path, begin: int, max_bytes: int) -> tuple[bytes, int]:
    """Return at most `max_bytes` of a regular file from offset `begin`, and its size; a negative `begin` counts from
    the end. Raises OSError."""
    with closing(open_regular(path)) as handle:
        size = os.fstat(handle).st_size
        return os.pread(handle, max_bytes, begin if begin >= 0 else max(0, size + begin)), size


def append_line(path: Path, line: bytes) -> None:
    """Append one line, or several, and fsync. Raises OSError; then a part of the line may have been written.

    A new file is readable by others and writable by its owner only, whatever the umask. A link, and a file of another
    user, is refused.
    """
    with closing(open_append(path)) as handle:
        status = os.fstat(handle)
        if not status.st_size:
            with contextlib.suppress(OSError):  # some file systems have no modes
                os.fchmod(handle, 0o644)
        elif os.pread(handle, 1, status.st_size - 1) != b"\n":
            line = b"\n" + line  # after a truncated line, start a new line
        written = os.write(handle, line)
        os.fsync(handle)
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def open_append(path: Path, *, mode: int = 0o644) -> int:
    """Return a descriptor of the regular file `path`, made with `mode`, that appends.

    Raises OSError, also for a link and for a file of another user.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, mode)
    status = os.fstat(handle)
    is_regular_file = stat.S_ISREG(status.st_mode)
    # On a file system that maps root to nobody, root's own files belong to another uid.
    if is_regular_file and os.geteuid() in (0, status.st_uid):
        return handle
    os.close(handle)
    why = f"belongs to uid {status.st_uid}" if is_regular_file else "not a regular file"
    raise OSError(errno.EPERM, why, str(path))


def open_for_writing(path: Path) -> int:
    """Return a descriptor of an empty regular file `path`. Raises OSError, also for a link."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def touch(path: Path) -> None:
    """Create the file `path`, or set its time of modification to now. Raises OSError, also for a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(path, flags, 0o644)) as handle:
        os.utime(handle)


def create(path: Path, data: bytes, *, mode: int) -> None:
    """Create the file `path` and fsync. Raises OSError, also if the path exists, and then leaves no file of its own."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(path, flags, mode)) as handle:
        written = os.write(handle, data)
        os.fsync(handle)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def is_writable_by_others(path: Path) -> bool:
    """Return whether other users than the owner can write the file; no for a missing file."""
    try:
        return bool(path.lstat().st_mode & 0o022)
    except OSError:
        return False


def close_to_others(path: Path) -> None:
    """Take the permission to write the file `path` from everybody but its owner. Does nothing for a missing file."""
    with contextlib.suppress(OSError), closing(open_regular(path)) as handle:
        status = os.fstat(handle)
        if status.st_mode & 0o022:
            os.fchmod(handle, stat.S_IMODE(status.st_mode) & ~0o022)


def set_aside(path: Path) -> None:
    """Rename a file that cannot be read, before another takes its place: a person may still need it."""
    with contextlib.suppress(OSError):
        path.replace(path.with_suffix(BROKEN))


def make_directory(path: Path, mode: int) -> None:
    """Make the directory `path` with exactly `mode`, whatever the umask. Keep an existing one. Raises OSError."""
    try:
        os.mkdir(path, mode)  # noqa: PTH102 (one call, as the ones around it)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    set_directory_mode(path, mode)


def make_directories(path: Path) -> None:
    """Make the directory and its missing parents, writable by the owner alone. Raises OSError.

    Parents that pathlib makes would follow the umask and the access list of the directory around them.
    """
    for place in reversed((path, *path.parents)):
        if not place.exists():
            place.mkdir(mode=0o755, exist_ok=True)


def set_directory_mode(path: Path, mode: int, *, group: int = -1) -> None:
    """Set the mode of the directory `path`, and its group; never of what a link leads to. Raises OSError."""
    with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as handle:
        if group >= 0:
            os.fchown(handle, -1, group)
        os.fchmod(handle, mode)


def list_names(path: Path, *, max_entries: int = MAX_ENTRIES) -> list[str]:
    """Return the names in a directory, unordered. Raises OSError, also for more than `max_entries` names."""
    names: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > max_entries:
                raise OSError(errno.EFBIG, f"more than {max_entries} entries", str(path))
    return names


def list_entries(path: Path, *, max_entries: int) -> list[os.DirEntry[str]]:
    """Return at most `max_entries` entries of a directory, unordered. Raises OSError."""
    with os.scandir(path) as entries:
        return list(islice(entries, max_entries))


def find_matches(directory: Path, pattern: str, *, max_entries: int = MAX_ENTRIES) -> Iterator[Path]:
    """Yield the paths below `directory` that match a pattern such as `rank_*/*.pt`, unordered.

    Of every directory, at most `max_entries` names are read. What cannot be listed has no matches.
    """
    name_pattern, _, rest = pattern.partition("/")
    names: Iterable[str] = [name_pattern]
    if "*" in name_pattern:
        try:
            entries = list_entries(directory, max_entries=max_entries)
        except OSError:
            return
        names = [entry.name for entry in entries if fnmatch.fnmatchcase(entry.name, name_pattern)]
    for name in names:
        if rest:
            yield from find_matches(directory / name, rest, max_entries=max_entries)
        elif os.path.lexists(directory / name):
            yield directory / name


def read_size_bytes(path: Path) -> int:
    """Return the size of a file; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_change_s(path: Path) -> float | None:
    """Return when the file was last written, in seconds since the epoch; None if unknown. A link is not followed."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def find_archive(path: Path) -> Path | None:
    """Return the archive of `path`; None without one. A link, and a file that the owner of its directory has not made,
    is none."""
    archive = path.with_name(path.name + ARCHIVE_SUFFIX)
    try:
        status = archive.lstat()
        is_archive = stat.S_ISREG(status.st_mode) and status.st_uid == archive.parent.stat().st_uid
    except OSError:
        return None
    return archive if is_archive else None


def is_regular(path: Path | str) -> bool:
    """Return whether `path` is a regular file, and no link. Raises OSError for any error but a missing file."""
    return _has_type(path, stat.S_ISREG)


def is_directory(path: Path | str) -> bool:
    """Return whether `path` is a directory, and no link. Raises OSError for any error but a missing directory."""
    return _has_type(path, stat.S_ISDIR)


def _has_type(path: Path | str, is_type: Any) -> bool:
    try:
        return bool(is_type(os.lstat(path).st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return False
