"""The newest steps in a log of any size, and a sample of all steps: of any trainer whose lines are known."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.state.files import open_regular
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.step_reader import iterate_steps

MAX_SEARCHED_BYTES = 64 << 20
"""Searched for the newest step. A trainer that logs more between two lines logs no steps."""
MAX_READ_BYTES = 4 << 20
"""Searched for further steps, to bound the time."""
SAMPLE_BYTES = 1 << 15
FIRST_WINDOW_BYTES = 1 << 16
USUAL_STEP_BYTES = 512
WINDOW_GROWTH = 4
CACHED_READS = 256
"""What was read of logs that have not changed since, as those of ended trains, is not read again: 0.1 MB for a log."""


def last_iteration(log: Path, pattern: str = "") -> Iteration | None:
    """Return the newest iteration of a log of any size; None if its end has none, or the log cannot be read."""
    return next(iter(recent_iterations(log, 1, pattern)), None)


def recent_iterations(log: Path, count: int, pattern: str = "") -> list[Iteration]:
    """Return the newest iterations of a log of any size, oldest first."""
    return [iteration for _, iteration in tail(log, count, pattern)]


def tail(log: Path, count: int, pattern: str = "") -> list[tuple[int, Iteration]]:
    """Return the newest steps with the offset of their lines, oldest first; fewer if lines are far apart.

    `pattern` is that of TRAIN.toml. A pattern that no line fits hides no steps: then the known formats count.
    """
    found = _tail_of(log, count, pattern)
    return _tail_of(log, count, "") if pattern and not found else found


def is_pattern_useless(log: Path, pattern: str) -> bool:
    """Return whether the known formats find steps in the log, and the pattern of TRAIN.toml none."""
    return bool(pattern) and not _tail_of(log, 1, pattern) and bool(_tail_of(log, 1, ""))


def _tail_of(log: Path, count: int, pattern: str) -> list[tuple[int, Iteration]]:
    return list(_read_tail(log, _read_version(log), count, pattern))


def _read_version(log: Path) -> tuple[int, ...]:
    """Return what differs after every change of a log; nothing without a log."""
    try:
        status = log.lstat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(CACHED_READS)
def _read_tail(log: Path, _version: tuple[int, ...], count: int, pattern: str) -> Sequence[tuple[int, Iteration]]:
    """Read windows of growing size from the end, until there are enough steps or a bound is reached."""
    window = max(FIRST_WINDOW_BYTES, count * USUAL_STEP_BYTES)
    with suppress(OSError, OpsctlError), os.fdopen(open_regular(log), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while True:
            begin = max(0, size - window)
            steps = list(iterate_steps(read_window(file.fileno(), begin, size), begin, pattern))[-count:]
            if len(steps) == count or not begin or window >= (MAX_READ_BYTES if steps else MAX_SEARCHED_BYTES):
                return steps
            window *= WINDOW_GROWTH
    return ()


def read_window(handle: int, begin: int, end: int, *, is_whole: bool = False) -> bytes:
    """Return the complete lines in a part of a file, with their offsets unchanged: an incomplete first line is blank.

    Carriage returns end lines too. A last line without a line end counts. With `is_whole`, a line begins at `begin`.
    """
    parts, at = [], begin
    while at < end and (part := os.pread(handle, end - at, at)):
        parts.append(part)
        at += len(part)
    data = b"".join(parts).replace(b"\r", b"\n")
    first = data.find(b"\n") if begin and not is_whole else 0
    if first < 0:
        return b""  # a part of one long line: a dump, or a hole in the file
    return b" " * first + data[first:] if first > 0 else data


def sampled(log: Path, places: int = 32, pattern: str = "") -> list[Iteration]:
    """Return steps at even distances over a log of any size, in order: up to two at every place."""
    return list(_read_sample(log, _read_version(log), places, pattern))


@lru_cache(CACHED_READS)
def _read_sample(log: Path, _version: tuple[int, ...], places: int, pattern: str) -> Sequence[Iteration]:
    iterations: list[Iteration] = []
    with suppress(OSError), os.fdopen(open_regular(log), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for place in range(places):
            begin = size * place // places
            sample = read_window(file.fileno(), begin, min(size, begin + SAMPLE_BYTES))
            complete = sample[: sample.rfind(b"\n") + 1]  # the last line may be incomplete
            iterations += [iteration for _, iteration in islice(iterate_steps(complete, 0, pattern), 2)]
    return iterations
