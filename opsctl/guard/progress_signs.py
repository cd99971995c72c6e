"""The steps of one attempt, from the signs that its trainer left. The only place where the guard reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.guard.attempt_record import Start, find_newest_checkpoint, read_start
from opsctl.state.files import is_regular, list_names, open_regular
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import MAX_READ_BYTES, parse
from opsctl.trainer.manifest import find_newest_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSteps:
    """The steps of one attempt; None if unknown."""

    resume: int | None = None
    """The step after which the attempt went on."""
    highest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    """The newest checkpoint of a train."""

    mark: int
    """Grows with every new checkpoint."""
    path: Path
    step: int | None = None


def find_newest(run: RunDir) -> NewestCheckpoint | None:
    """Return the newest complete checkpoint, None without one. Raises OSError."""
    if is_regular(run.trainer_config):
        newest = find_newest_complete(run.checkpoints)
        return NewestCheckpoint(mark=newest.step, path=newest.path, step=newest.step) if newest else None
    try:
        names = list_names(run.checkpoints)
    except FileNotFoundError:
        return None
    paths = [run.checkpoints / name for name in names if not name.startswith(".")]
    entries = [(path.stat().st_mtime_ns, path) for path in paths]
    if not entries:
        return None
    mark, path = max(entries)
    digits = re.findall(r"\d+", path.name)
    return NewestCheckpoint(mark=mark, path=path, step=int(digits[-1]) if digits else None)


def read_attempt_steps(run: RunDir, name: str, started: Sequence[str], start: Start | None) -> AttemptSteps:
    """Return the steps of an attempt. `started` lists all attempts in the order of their starts.

    The checkpoints of the embedded trainer are certain, so that no log is read.
    """
    if start is None:
        return AttemptSteps()
    if is_regular(run.trainer_config):
        return AttemptSteps(resume=start.checkpoint, highest=find_newest_checkpoint(run))
    later = started[started.index(name) + 1 :] if name in started else ()
    next_start = next(filter(None, (read_start(run.attempt(name)) for name in later)), None)
    first, highest = None, None
    for data in _read_both_ends(run, start.main_log, next_start.main_log if next_start else 0):
        steps = list(_steps(data))
        if steps:
            first = steps[0] if first is None else first
            highest = max(steps if highest is None else [*steps, highest])
    return AttemptSteps(resume=None if first is None else first - 1, highest=highest)


def _read_both_ends(run: RunDir, begin: int, end: int) -> Iterator[bytes]:
    """Yield the first and the last bytes of the attempt's part of the log, up to a bound each. `end` 0: to the end."""
    try:
        with os.fdopen(open_regular(run.main_log), "rb", buffering=0) as file:
            end = end or os.fstat(file.fileno()).st_size
            yield os.pread(file.fileno(), max(0, min(end - begin, MAX_READ_BYTES)), begin)
            if end - begin > MAX_READ_BYTES:
                yield os.pread(file.fileno(), MAX_READ_BYTES, max(begin, end - MAX_READ_BYTES))
    except OSError:
        return


def _steps(data: bytes) -> Iterator[int]:
    for line in data.split(b"\n"):
        if b"iteration" in line and (iteration := parse(line.decode(errors="replace"))):
            yield iteration.step
