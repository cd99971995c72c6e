"""Read the steps logged since the last watch cycle, of any trainer, and only those bytes."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opsctl.state.files import read_size_bytes
from opsctl.telemetry.logs.growing_file import GrowingFile, Position
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_formats import formats_for, load_epochs
from opsctl.telemetry.progress.step_reader import StepReader
from opsctl.watchdogs.context import WatchedTrain

FIRST_BYTES = 8 << 20
"""The first read starts this far from the log's end: some thousands of iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """How far a log has been read, and by which rank."""

    inode: int
    offset: int
    writer: str | None = None
    total: int | None = None
    unit: Literal["", "step", "epoch"] = ""
    """What the log has shown so far: as long as it is no step, an epoch counts as EPOCH_PARTS steps."""
    moved: tuple[int, int] | None = None
    """Inode and offset of the log before, which was renamed and is read on."""


def new_iterations(
    log: Path, place: LogPlace | None, pattern: str = "", *, or_epochs: bool = False
) -> tuple[list[Iteration], LogPlace]:
    """Return the steps behind a place, and the place behind them. Raises RunDirError.

    `pattern` is that of TRAIN.toml. A truncated log is read from its beginning. A renamed log is read on while the file
    lies beside its successor: the writer may still hold the old file open. If every rank logs steps, one rank is
    followed until that rank stops. `or_epochs`: the epochs of a log that has never shown a step count as steps.
    """
    place = place or _find_first_place(log)
    start = Position(inode=place.inode, offset=place.offset)
    moved, before = _moved_aside(log, place, start)
    files = [GrowingFile(moved, before)] if moved else []
    files.append(GrowingFile(log, Position() if moved and before == start else start))
    reader = StepReader(formats_for(pattern), writer=place.writer, total=place.total)
    steps, positions = _read_steps(reader, files)
    if not steps and reader.skipped_lines:  # the rank that was followed has fallen silent
        reader = StepReader(formats_for(pattern), writer=None, total=place.total)
        steps, positions = _read_steps(reader, files)
    unit = "step" if steps else place.unit
    if or_epochs and unit != "step":
        steps, positions = _read_steps(StepReader((load_epochs(),)), files)
        unit = "epoch" if steps else unit
    end = LogPlace(
        inode=positions[-1].inode,
        offset=positions[-1].offset,
        writer=reader.writer,
        total=reader.total,
        unit=unit,
        moved=(positions[0].inode, positions[0].offset) if moved else None,
    )
    return steps, end


def why_idle(train: WatchedTrain) -> str:
    """Return why nothing is expected in the log of a train: over, or not started; empty otherwise."""
    if train.is_over:
        return "the train is over"
    return "" if read_size_bytes(train.run.main_log) else "nothing logged yet"


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


def _moved_aside(log: Path, place: LogPlace, start: Position) -> tuple[Path | None, Position]:
    """Return the current path of the previously read, renamed log, and the position in that file."""
    before = start
    if _inode(log) == start.inode:
        inode, offset = place.moved or (0, 0)
        before = Position(inode=inode, offset=offset)
    if before.inode == 0:
        return None, before
    renamed = (path for path in log.parent.glob(f"{glob.escape(log.name)}?*") if _inode(path) == before.inode)
    return next(renamed, None), before


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _find_first_place(log: Path) -> LogPlace:
    try:
        now = log.stat()
    except FileNotFoundError:
        return LogPlace(inode=0, offset=0)
    return LogPlace(inode=now.st_ino, offset=max(0, now.st_size - FIRST_BYTES))
