"""The iteration lines that are new since a watchdog last looked, at the price of what is new."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from opsctl.telemetry.logs.growing_file import GrowingFile, Position
from opsctl.telemetry.logs.log_lines import LogLine, read_line
from opsctl.telemetry.progress.iteration_lines import Iteration, parse

FIRST_BYTES = 8 << 20
"""How far from its end a log is read the first time: some thousands of iterations, whatever its size."""


def new_iterations(log: Path, fields: dict[str, Any]) -> tuple[list[Iteration], dict[str, Any]]:
    """The iterations since what was `kept`, and what to keep now. Raises RunDirError.

    A log that was cut off is read from its beginning. One that was moved aside is read on for as long as it lies beside
    its successor: whoever writes it may never notice. Where every rank writes such lines, one is followed, until it
    falls silent.
    """
    start = _start(log, fields)
    moved, before = _moved_aside(log, start, fields)
    log_lines, rest = _read(moved, before) if moved else ([], before)
    new, position = _read(log, Position() if moved and before == start else start)
    log_lines += new
    found = [(line.rank, iteration) for line in log_lines if (iteration := parse(line.text.decode(errors="replace")))]
    ranks = [rank for rank, _ in found]
    rank = fields.get("rank") if fields.get("rank") in ranks or not ranks else ranks[0]
    lines = [iteration for speaker, iteration in found if speaker == rank]
    before_it = {"moved": [rest.inode, rest.offset]} if moved else {}
    return lines, {"inode": position.inode, "offset": position.offset, "rank": rank, **before_it}


def _read(log: Path, start: Position) -> tuple[list[LogLine], Position]:
    file = GrowingFile(log, start)
    try:
        return [read_line(line) for line in file.read() if b"iteration" in line], file.position
    finally:
        file.close()


def _moved_aside(log: Path, start: Position, fields: dict[str, Any]) -> tuple[Path | None, Position]:
    """The file that was read before the one that is there now, under the name that it has now, and how far."""
    before = start
    if _inode(log) == start.inode:
        given = fields.get("moved")
        if not (isinstance(given, list) and len(given) == 2 and all(isinstance(each, int) for each in given)):
            return None, Position()
        before = Position(inode=given[0], offset=given[1])
    if before.inode == 0:
        return None, before
    beside = (path for path in log.parent.glob(f"{glob.escape(log.name)}?*") if _inode(path) == before.inode)
    return next(beside, None), before


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _start(log: Path, fields: dict[str, Any]) -> Position:
    inode, offset = fields.get("inode"), fields.get("offset")
    if isinstance(inode, int) and isinstance(offset, int):
        return Position(inode=inode, offset=offset)
    try:
        now = log.stat()
    except FileNotFoundError:
        return Position()
    return Position(inode=now.st_ino, offset=max(0, now.st_size - FIRST_BYTES))
