"""Read the steps logged since the last watch cycle, of any trainer, and only those bytes."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opsctl.telemetry.logs.growing_file import GrowingFile, Position
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_formats import formats_for
from opsctl.telemetry.progress.step_reader import StepReader
from opsctl.watchdogs.context import WatchedTrain

FIRST_BYTES = 8 << 20
"""The first read starts this far from the log's end: some thousands of iterations."""


def new_iterations(log: Path, fields: dict[str, Any], pattern: str = "") -> tuple[list[Iteration], dict[str, Any]]:
    """Return the steps since the position in `fields`, and the new fields to store. Raises RunDirError.

    `pattern` is that of TRAIN.toml. A truncated log is read from its beginning. A renamed log is read on while the file
    lies beside its successor: the writer may still hold the old file open. If every rank logs steps, one rank is
    followed until that rank stops.
    """
    start = _start(log, fields)
    moved, before = _moved_aside(log, start, fields)
    files = [GrowingFile(moved, before)] if moved else []
    files.append(GrowingFile(log, Position() if moved and before == start else start))
    reader = _restore_reader(fields, pattern)
    steps, positions = _read_steps(reader, files)
    if not steps and reader.skipped_lines:  # the rank that was followed has fallen silent
        reader = _restore_reader({**fields, "writer": None}, pattern)
        steps, positions = _read_steps(reader, files)
    position = positions[-1]
    moved_fields = {"moved": [positions[0].inode, positions[0].offset]} if moved else {}
    return steps, {
        "inode": position.inode,
        "offset": position.offset,
        "writer": reader.writer,
        "total": reader.total,
        **moved_fields,
    }


def why_idle(train: WatchedTrain) -> str:
    """Return why nothing is expected in the log of a train: over, or not started; empty otherwise."""
    if train.is_over:
        return "the train is over"
    try:
        return "" if train.run.main_log.stat().st_size else "nothing logged yet"
    except FileNotFoundError:
        return "nothing logged yet"


def _restore_reader(fields: dict[str, Any], pattern: str) -> StepReader:
    writer, total = fields.get("writer"), fields.get("total")
    return StepReader(
        formats_for(pattern),
        writer=writer if isinstance(writer, str) else None,
        total=total if isinstance(total, int) else None,
    )


def _read_steps(reader: StepReader, files: Sequence[GrowingFile]) -> tuple[list[Iteration], list[Position]]:
    """Return the steps in new lines, and the position after them in each file.

    The lines are not kept: a million of them, in three threads, is memory that the C library does not give back.
    """
    steps: list[Iteration] = []
    positions = []
    for file in (GrowingFile(file.path, file.start) for file in files):
        try:
            for line in file.read():
                steps += reader.read(line).iterations
            positions.append(file.position)
        finally:
            file.close()
    last = reader.rest()
    return (steps if last is None else [*steps, last]), positions


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
