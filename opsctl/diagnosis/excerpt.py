"""The few lines that prove an event, and when it was."""

from __future__ import annotations

import os

from opsctl.diagnosis.causes import UNEXPLAINED
from opsctl.diagnosis.scan_logs import LONGEST, LogEvent
from opsctl.diagnosis.speakers import Speaker, split
from opsctl.state.files import open_regular
from opsctl.telemetry.logs.log_lines import time_of

NEARBY = 128 << 10
"""Bytes around a line in which what belongs to it is looked for."""
BEFORE, AFTER = 3, 1
"""Lines that are shown around one."""
MOST = 9
"""Lines of a traceback."""


def excerpt(event: LogEvent) -> list[str]:
    """The lines of the same speaker around an event, without prefixes and frames of C++; of a traceback nobody
    explains, all of it but the middle."""
    above, below = _around(event)
    if event.cause is UNEXPLAINED:
        return _traceback(below)
    return [*above[-BEFORE:], event.text, *below[1 : 1 + AFTER]]


def when(event: LogEvent) -> str:
    """The time of the nearest line before, or after, that bears one, by the clock of whoever said it; may be empty."""
    above, below = _read(event)
    nearest = (*below[:1], *reversed(above), *below[1:])
    data = next(filter(None, map(time_of, nearest)), b"")
    return data.decode()


def _around(event: LogEvent) -> tuple[list[str], list[str]]:
    above, below = _read(event)
    mine = _place(split(below[0])[0]) if below else ("", None)
    return _lines_of(mine, above), _lines_of(mine, below)


def _read(event: LogEvent) -> tuple[list[bytes], list[bytes]]:
    """The lines before, and the line itself with those after it."""
    start = max(0, event.offset - NEARBY)
    try:
        with os.fdopen(open_regular(event.path), "rb") as file:
            above = os.pread(file.fileno(), event.offset - start, start)
            below = os.pread(file.fileno(), NEARBY, event.offset)
    except OSError:
        return [], [event.text.encode()]
    lines = above.split(b"\n")
    return lines[1 if start else 0 : -1], below.split(b"\n")


def _place(speaker: Speaker) -> tuple[str, int | None]:
    return speaker.node, speaker.rank


def _lines_of(place: tuple[str, int | None], lines: list[bytes]) -> list[str]:
    """What one rank says. In a log of one rank no line has a prefix, and all of it is that rank's."""
    generator = (split(line[:LONGEST]) for line in lines if line.strip())
    return [
        text.decode(errors="replace").rstrip()
        for speaker, text in generator
        if _place(speaker) == place and not text.startswith((b"frame #", b"Exception raised from"))
    ]


def _traceback(lines: list[str]) -> list[str]:
    """From its head to the line of the exception."""
    stop = next((n for n, line in enumerate(lines[1:], 1) if not line.startswith((" ", "\t"))), len(lines) - 1)
    shown = lines[: stop + 1]
    return shown if len(shown) <= MOST else [shown[0], "  ...", *shown[2 - MOST :]]
