"""Read a growing file on disk: onwards from a position, through rotation and truncation, or backwards from its end."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.base.errors import cannot_read
from opsctl.state.files import closing, open_regular
from opsctl.telemetry.logs.log_lines import MAX_LINE_BYTES, LineBuffer

BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An offset in the file with this inode. A later reader can start at a stored position."""

    inode: int = 0
    offset: int = 0


@dataclass(slots=True)
class GrowingFile:
    """Follows one path. The file may be missing, appear later, be truncated or be replaced.

    The file stays open between two reads, so that lines written just before a rotation are not missed.
    """

    path: Path
    start: Position = Position()
    """Where to begin. A different file at the path is read from its beginning."""
    _handle: int = -1
    _offset: int = 0
    _buffer: LineBuffer = field(default_factory=LineBuffer)

    def read(self) -> Iterator[bytes]:
        """Yield the new complete lines, without line ends. The caller reads to the last line.

        Raises RunDirError for a file without read permission.
        """
        while self._handle >= 0 or self._open():
            try:
                yield from self._read_on()
                if not self._is_replaced():
                    return
            except OSError as error:
                # On NFS: another host removed the file. The next read opens its successor.
                if error.errno != errno.ESTALE:
                    raise cannot_read(self.path, error) from error
            self.close()
            yield from self.rest()  # the last line of a replaced file, also without a line end

    def rest(self) -> list[bytes]:
        """Return a last line without a line end, if any, and forget it: its remainder will be a line of its own."""
        return [rest] if (rest := self._buffer.rest()) else []

    @property
    def position(self) -> Position:
        """Return the position after the last complete line, or `start` while there is no file."""
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
        while data := os.pread(self._handle, BLOCK_BYTES, self._offset):
            self._offset += len(data)
            yield from self._buffer.feed(data)

    def _is_replaced(self) -> bool:
        opened = os.fstat(self._handle)
        try:
            current = self.path.lstat()
        except FileNotFoundError:
            return False  # no successor yet: this file may still grow
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)


def _open(path: Path) -> int | None:
    try:
        return open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_read(path, error) from error


def at_tail(path: Path, lines: int, prefix: bytes = b"") -> GrowingFile:
    """Return a reader that begins `lines` lines before the end, without a read from the start of the file.

    Only lines with the prefix count.
    """
    lines_from_end = ((offset, line) for offset, line in backwards(path) if line.startswith(prefix))
    offset = None
    for _ in range(lines):
        offset, _line = next(lines_from_end, (0, b""))
        if offset == 0:
            break
    try:
        now = path.stat()
    except FileNotFoundError:
        return GrowingFile(path)
    return GrowingFile(path, Position(inode=now.st_ino, offset=now.st_size if offset is None else offset))


def backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and line from the last line to the first. Yield nothing for a missing file.

    A last line without a line end counts. Very long lines come in pieces. Raises RunDirError as `GrowingFile.read`.
    """
    if (opened := _open(path)) is not None:
        with closing(opened) as handle:
            yield from _backwards(handle, os.fstat(handle).st_size)


def _backwards(handle: int, size: int) -> Iterator[tuple[int, bytes]]:
    end, pending, is_first = size, b"", True
    blocks: list[bytes] = []
    """Of a long line, the last block first: joined once, not block by block."""
    while end:
        begin = max(0, end - BLOCK_BYTES)
        blocks.append(os.pread(handle, end - begin, begin))
        end = begin
        is_inside = end and not is_first and b"\n" not in blocks[-1]
        if is_inside and len(pending) + BLOCK_BYTES * len(blocks) < MAX_LINE_BYTES:
            continue
        pending, blocks = b"".join(reversed(blocks)) + pending, []
        if is_first:
            pending, is_first = pending.removesuffix(b"\n"), False
        head, *lines = pending.split(b"\n")
        at = begin + len(pending)
        for line in reversed(lines):
            at -= len(line)
            yield at, line
            at -= 1
        pending = head
        if len(pending) >= MAX_LINE_BYTES:
            yield begin, pending
            # The piece before must not join this piece.
            pending = b""
    if size:
        yield 0, pending
