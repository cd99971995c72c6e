"""What the last lines of an attempt say about the end of the training, by the patterns of log_events.toml."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from opsctl.state.files import open_regular
from opsctl.telemetry.progress.log_events import ProgressEventKind, parse_event

MAX_READ_BYTES = 1 << 16
MAX_LINE_CHARS = 2000
UNFINISHED = frozenset({ProgressEventKind.EXITING, ProgressEventKind.SIGNALLED})
"""The trainer stops early, and the next task goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLines:
    """The lines that say whether the training is over; empty if there is none."""

    finished: str = ""
    unfinished: str = ""


def read_last_lines(log: Path, begin: int, end: int | None = None) -> LastLines:
    """Return what a log says at its end, between two offsets. Raises nothing."""
    try:
        with os.fdopen(open_regular(log), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if end is None else min(end, size)
            start = max(begin, end - MAX_READ_BYTES)
            data = os.pread(file.fileno(), max(0, end - start), start)
    except OSError:
        return LastLines()
    return parse_last_lines(data.decode(errors="replace"))


def parse_last_lines(text: str) -> LastLines:
    """Return what a text says. A progress bar is separated from its next state by a carriage return."""
    finished = unfinished = ""
    for line in re.split(r"[\r\n]+", text):
        stripped = line.strip()[-MAX_LINE_CHARS:]
        event = parse_event(stripped)
        if event and event.kind is ProgressEventKind.FINISHED:
            finished = stripped
        elif event and event.kind in UNFINISHED:
            unfinished = stripped
    return LastLines(finished=finished, unfinished=unfinished)
