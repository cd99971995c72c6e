"""The iteration lines that are new since a watchdog last looked, at the price of what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsctl.logs.files import GrowingFile, Position
from opsctl.progress.logline import Iteration, parse

FIRST_BYTES = 8 << 20
"""How far from its end a log is read the first time: some thousands of iterations, whatever its size."""


def new_iterations(log: Path, kept: dict[str, Any]) -> tuple[list[Iteration], dict[str, int]]:
    """The iterations since the position that was `kept`, and the position to keep now. Raises RunDirError.

    A log that was rotated or cut off is read from its beginning; one that is not there has nothing.
    """
    file = GrowingFile(log, _start(log, kept))
    try:
        found = [parse(line.decode(errors="replace")) for line in file.read() if b"iteration" in line]
        position = file.position
    finally:
        file.close()
    return [each for each in found if each], {"inode": position.inode, "offset": position.offset}


def _start(log: Path, kept: dict[str, Any]) -> Position:
    inode, offset = kept.get("inode"), kept.get("offset")
    if isinstance(inode, int) and isinstance(offset, int):
        return Position(inode=inode, offset=offset)
    try:
        now = log.stat()
    except FileNotFoundError:
        return Position()
    return Position(inode=now.st_ino, offset=max(0, now.st_size - FIRST_BYTES))
