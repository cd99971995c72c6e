"""Read the iteration lines written since the last watch cycle, and only those bytes."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from opsctl.telemetry.logs.growing_file import GrowingFile, Position
from opsctl.telemetry.logs.log_lines import LogLine, read_line
from opsctl.telemetry.progress.iteration_lines import Iteration, parse

FIRST_BYTES = 8 << 20
"""The first read starts this far from the log's end: some thousands of iterations."""


def new_iterations(log: Path, fields: dict[str, Any]) -> tuple[list[Iteration], dict[str, Any]]:
    """Return the iterations since the position in `fields`, and the new fields to store. Raises RunDirError.

    A truncated log is read from its beginning. A renamed log is read on while the file lies beside its successor: the
    writer may still hold the old file open. If every rank prints lines, one rank is followed until that rank stops.
    """
    start = _start(log, fields)
    moved, before = _moved_aside(log, start, fields)
    log_lines, rest = _read(moved, before) if moved else ([], before)
    new, position = _read(log, Position() if moved and before == start else start)
    log_lines += new
    ranked = [(line.rank, iteration) for line in log_lines if (iteration := parse(line.text.decode(errors="replace")))]
    ranks = [rank for rank, _ in ranked]
    rank = fields.get("rank") if fields.get("rank") in ranks or not ranks else ranks[0]
    lines = [iteration for writer, iteration in ranked if writer == rank]
    moved_fields = {"moved": [rest.inode, rest.offset]} if moved else {}
    return lines, {"inode": position.inode, "offset": position.offset, "rank": rank, **moved_fields}


def _read(log: Path, start: Position) -> tuple[list[LogLine], Position]:
    file = GrowingFile(log, start)
    try:
        return [read_line(line) for line in file.read() if b"iteration" in line], file.position
    finally:
        file.close()


def _moved_aside(log: Path, start: Position, fields: dict[str, Any]) -> tuple[Path | None, Position]:
    """Return the current path of the previously read, renamed log, and the position in that file."""
    before = start
    if _inode(log) == start.inode:
        stored = fields.get("moved")
        if not (isinstance(stored, list) and len(stored) == 2 and all(isinstance(number, int) for number in stored)):
            return None, Position()
        before = Position(inode=stored[0], offset=stored[1])
    if before.inode == 0:
        return None, before
    renamed = (path for path in log.parent.glob(f"{glob.escape(log.name)}?*") if _inode(path) == before.inode)
    return next(renamed, None), before


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
