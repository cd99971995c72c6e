"""Write, read and check the archives of old files.

An archive is complete, or absent. The originals go at a later call, when no process reads them any more. A killed call
is continued by the next. state/packed.py says what has an archive; this module is imported only where there is one.
"""

import errno
import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from opsctl.state.files import (
    ARCHIVE_SUFFIX,
    find_archive,
    find_matches,
    fsync_directory,
    is_directory,
    is_regular,
    open_for_writing,
    open_regular,
)

MAX_UNPACKED_BYTES, MAX_MEMBERS, MAX_READ_BYTES = 16 << 30, 200_000, 16 << 20
"""Of all files together, of files, and of one header: the owner of a train may have made any archive."""
SMALL_BYTES, MAX_RATIO = 64 << 20, 200
"""What another user's archive may always hold, and how many times its size beyond: logs are a twentieth when packed."""


def find_own_files(path: Path) -> list[Path]:
    """Return the regular files of this user that `path` stands for. No link is followed."""
    found = list(find_matches(path.parent, "flight-*")) if path.name == "flight" else []
    for place, _, names in os.walk(path) if is_directory(path) else ():
        found += [Path(place, name) for name in names]
    return [file for file in found if is_regular(file) and file.lstat().st_uid == os.geteuid()]


def pack(path: Path, files: Sequence[Path]) -> None:
    """Write the archive of `path`, with the time of the newest log, or file. Raises OSError, then with no archive."""
    archive = path.with_name(path.name + ARCHIVE_SUFFIX)
    temporary = archive.with_name(f".{archive.name}.packing")
    temporary.unlink(missing_ok=True)  # a killed call's, or planted
    try:
        _write_archive(temporary, path.parent, files)
        temporary.replace(archive)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(archive.parent)


def _write_archive(target: Path, base: Path, files: Sequence[Path]) -> None:
    newest, modes = (False, 0), 0o644
    with os.fdopen(open_for_writing(target), "wb") as packing:
        os.fchmod(packing.fileno(), 0o600)
        with tarfile.open(fileobj=packing, mode="w:gz", compresslevel=6, dereference=True) as tar:
            for file in sorted(files):
                with os.fdopen(open_regular(file), "rb") as reading:
                    member = tar.gettarinfo(arcname=str(file.relative_to(base)), fileobj=reading)
                    tar.addfile(member, reading)
                    newest = max(newest, (file.suffix == ".log", os.fstat(reading.fileno()).st_mtime_ns))
                    modes &= member.mode | 0o600
        packing.flush()
        os.fchmod(packing.fileno(), modes)  # read by those who may read every file
        os.utime(packing.fileno(), ns=(newest[1], newest[1]))
        os.fsync(packing.fileno())


def remove_packed(path: Path, files: Sequence[Path]) -> None:
    """Remove the files that the archive of `path` holds as they are. Reads the whole archive before. Raises OSError."""
    archive = find_archive(path)
    if archive is None or archive.lstat().st_uid != os.geteuid():
        return
    with _reading(archive) as tar:
        packed = {member.name: (member.size, int(member.mtime)) for member in tar}
    for file in files:
        status = file.lstat()
        if packed.get(str(file.relative_to(path.parent))) == (status.st_size, int(status.st_mtime)):
            file.unlink()
    for directory, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):  # not empty: what was added since, or is not ours
            Path(directory).rmdir()


class _Gzip(gzip.GzipFile):
    """tarfile reads a header into memory whatever its size."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_READ_BYTES:
            raise OSError(errno.EFBIG, "a header is larger than opsctl writes any", self.name)
        return super().read(size)


@contextmanager
def _reading(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive; its checksum is read at the end of the block. Raises OSError, also for a damaged archive."""
    try:
        with os.fdopen(open_regular(archive), "rb") as file, _Gzip(fileobj=file) as data:
            with tarfile.open(fileobj=data, mode="r:") as tar:
                yield tar
            while data.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise OSError(errno.EIO, f"a damaged archive: {error}", str(archive)) from error


def unpack(archive: Path) -> Path:
    """Return a copy of the directory of an archive, with the files of the archive and their times. Raises OSError."""
    status = archive.lstat()
    return _below(_copy(archive, status.st_ino, status.st_mtime_ns), archive.parent)


def _below(copies: "tempfile.TemporaryDirectory[str]", directory: Path) -> Path:
    return Path(f"{copies.name}{os.path.normpath(directory.absolute())}")


@lru_cache(maxsize=16)
def _copy(archive: Path, _inode: int, _changed_ns: int) -> "tempfile.TemporaryDirectory[str]":
    """Copy the files of an archive. The directory goes with the process, or with the last who knows it."""
    copies = tempfile.TemporaryDirectory(prefix="opsctl-packed-")
    target, status = _below(copies, archive.parent), archive.lstat()
    room = min(MAX_UNPACKED_BYTES, shutil.disk_usage(copies.name).free // 2)
    if status.st_uid != os.geteuid():
        room = min(room, SMALL_BYTES + MAX_RATIO * status.st_size)
    count = 0
    with _reading(archive) as tar:
        for count, member in enumerate(tar, 1):
            room -= member.size
            if room < 0 or count > MAX_MEMBERS:
                raise OSError(errno.EFBIG, "larger than an archive of opsctl, or the free space", str(archive))
            reading = tar.extractfile(member) if member.isreg() else None
            place = Path(os.path.normpath(target / member.name))
            if reading is None or not place.is_relative_to(target):
                continue  # nothing that opsctl packs
            place.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_for_writing(place), "wb") as writing:
                shutil.copyfileobj(reading, writing)
            os.utime(place, (member.mtime, member.mtime))
    if not count:
        raise OSError(errno.EIO, "a damaged archive: no file in it", str(archive))
    return copies
