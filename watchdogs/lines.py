"""The iteration lines that are new since a watchdog last looked, at the price of what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsctl.logs.files import GrowingFile, Position
from opsctl.logs.lines import read_line
from opsctl.progress.logline import Iteration, parse

FIRST_BYTES = 8 << 20
"""How far from its end a log is read the first time: some thousands of iterations, whatever its size."""


def new_iterations(log: Path, kept: dict[str, Any]) -> tuple[list[Iteration], dict[str, Any]]:
    """The iterations since what was `kept`, and what to keep now. Raises RunDirError.

    A log that was rotated or cut off is read from its beginning; one that is not there has nothing. Where every rank
    writes such lines, one is followed, until it falls silent.
    """
    file = GrowingFile(log, _start(log, kept))
    try:
        said = [read_line(line) for line in file.read() if b"iteration" in line]
        position = file.position
    finally:
        file.close()
    found = [(line.rank, each) for line in said if (each := parse(line.text.decode(errors="replace")))]
    ranks = [rank for rank, _ in found]
    rank = kept.get("rank") if kept.get("rank") in ranks or not ranks else ranks[0]
    lines = [each for speaker, each in found if speaker == rank]
    return lines, {"inode": position.inode, "offset": position.offset, "rank": rank}


def _start(log: Path, kept: dict[str, Any]) -> Position:
    inode, offset = kept.get("inode"), kept.get("offset")
    if isinstance(inode, int) and isinstance(offset, int):
        return Position(inode=inode, offset=offset)
    try:
        now = log.stat()
    except FileNotFoundError:
        return Position()
    return Position(inode=now.st_ino, offset=max(0, now.st_size - FIRST_BYTES))
