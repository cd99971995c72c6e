"""A growing file on disk: read on from where we were, through rotation and truncation, or backwards from its end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.errors import cannot_read
from opsctl.telemetry.logs.log_lines import LONGEST_LINE, LineBuffer

BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a reader is: so far into the file with this inode. It can be kept and given to a later reader."""

    inode: int = 0
    offset: int = 0


@dataclass(slots=True)
class GrowingFile:
    """Follows one path. The file may be missing, come later, be cut off, or be replaced by another.

    Between two reads it stays open, so that what was written just before it was rotated away is not missed.
    """

    path: Path
    start: Position = Position()
    """Where to begin; from the beginning if that file is not at the path any more."""
    _handle: int = -1
    _offset: int = 0
    _buffer: LineBuffer = field(default_factory=LineBuffer)

    def read(self) -> Iterator[bytes]:
        """The complete lines that are new, without their ends; to be read to the last one.

        Raises RunDirError for a file that may not be read.
        """
        while self._handle >= 0 or self._open():
            try:
                yield from self._read_on()
                if not self._is_replaced():
                    return
            except OSError as error:
                # On NFS: another host has removed it. Its successor is read the next time.
                if error.errno != errno.ESTALE:
                    raise cannot_read(self.path, error) from error
            yield from self._give_up()

    def rest(self) -> list[bytes]:
        """A last line that has no end, if there is one. It is given up: what completes it comes as another line."""
        return [rest] if (rest := self._buffer.rest()) else []

    @property
    def position(self) -> Position:
        """Behind the last complete line; where to begin, as long as there is no file."""
        if self._handle < 0:
            return self.start
        return Position(inode=os.fstat(self._handle).st_ino, offset=self._offset - len(self._buffer.partial))

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _open(self) -> bool:
        if (handle := _open(self.path)) is None:
            return False
        self._handle = handle
        inode = os.fstat(self._handle).st_ino
        self._offset = self.start.offset if inode == self.start.inode else 0
        self.start = Position()
        return True

    def _read_on(self) -> Iterator[bytes]:
        if os.fstat(self._handle).st_size < self._offset:
            self._offset = 0
            self._buffer.rest()
        while data := os.pread(self._handle, BLOCK, self._offset):
            self._offset += len(data)
            yield from self._buffer.feed(data)

    def _is_replaced(self) -> bool:
        ours = os.fstat(self._handle)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False  # its successor is not there yet, and until then more may be written to it
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _give_up(self) -> Iterator[bytes]:
        """The old file ends here, a line without an end included."""
        self.close()
        yield from self.rest()


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_read(path, error) from error


def at_tail(path: Path, lines: int) -> GrowingFile:
    """A reader that begins `lines` lines before the end. The file is not read from its start for that."""
    iterator = backwards(path)
    offset = None
    for _ in range(lines):
        offset, _line = next(iterator, (0, b""))
        if offset == 0:
            break
    try:
        now = path.stat()
    except FileNotFoundError:
        return GrowingFile(path)
    return GrowingFile(path, Position(inode=now.st_ino, offset=now.st_size if offset is None else offset))


def backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from the last to the first, each with the offset where it begins. Nothing if it is missing.

    A last line without an end counts as one. Very long lines come in pieces. Raises as `GrowingFile.read` does.
    """
    if (handle := _open(path)) is None:
        return
    try:
        yield from _backwards(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)


def _backwards(handle: int, size: int) -> Iterator[tuple[int, bytes]]:
    end, pending, is_first = size, b"", True
    while end:
        begin = max(0, end - BLOCK)
        pending = os.pread(handle, end - begin, begin) + pending
        end = begin
        if is_first:
            pending, is_first = pending.removesuffix(b"\n"), False
        head, *lines = pending.split(b"\n")
        at = begin + len(pending)
        for line in reversed(lines):
            at -= len(line)
            yield at, line
            at -= 1
        pending = head
        if len(pending) >= LONGEST_LINE:
            yield begin, pending
            # The piece before it must not join it.
            pending = b""
    if size:
        yield 0, pending
