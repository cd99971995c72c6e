"""Collect the few lines of a log that prove an event, and find the time of the event."""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from opsctl.diagnosis.causes import UNEXPLAINED, classify
from opsctl.diagnosis.line_origin import LineOrigin, split
from opsctl.diagnosis.scan_logs import MAX_LINE_BYTES, LogEvent
from opsctl.state.files import read_range
from opsctl.telemetry.logs.log_lines import blank_own_lines, time_of

MAX_DISTANCE_BYTES = 128 << 10
"""Distance from the event, in both directions, within which related lines are searched."""
LINES_BEFORE = 3
LINES_AFTER = 1
MAX_TRACEBACK_LINES = 9
NOWHERE = ("", None)
"""The place of an origin of whom neither node nor rank is known."""
_FRAME = re.compile(r'File "(?:[^"]*/)?([^"/]+)", (line \d+), in (\S+)')
NOISE = (b"frame #", b"Exception raised from")
"""Starts of lines with C++ frames, which the excerpt leaves out."""


def collect_excerpt(event: LogEvent) -> list[str]:
    """Return the lines of the same origin around an event, without prefixes and without C++ frames.

    For a traceback without a known cause, return the traceback; the middle of a long traceback is left out.
    """
    above, below = _read_same_origin(event)
    if event.cause is UNEXPLAINED:
        return _shorten_traceback(below)
    return [*above[-LINES_BEFORE:], event.text, *below[1 : 1 + LINES_AFTER]]


def find_matched_line(cause: str, excerpt: Sequence[str]) -> str:
    """Return the line of an excerpt that proves the cause, else the last line that says something; empty for none.

    The head of a traceback says nothing.
    """
    lines = [line.strip() for line in excerpt if line.strip() and not UNEXPLAINED.pattern.search(line)]
    matched = (line for line in lines if (found := classify(line)) and found.name == cause)
    return next(matched, lines[-1] if lines else "")


def find_place(excerpt: Sequence[str]) -> str:
    """Return where a Python traceback ends, as `train.py, line 22, in read_batch`; empty without a traceback."""
    places = [f"{name}, {line}, in {function}" for name, line, function in _FRAME.findall("\n".join(excerpt))]
    return places[-1] if places else ""


def read_preceding(event: LogEvent, limit: int) -> list[str]:
    """Return the lines before an event, at most `limit`: of the same origin, or of all if the event names none."""
    above, below = _read_around(event)
    place = _place(split(below[0])[0]) if below else NOWHERE
    if place == NOWHERE:
        return [split(line)[1].decode(errors="replace") for line in above[-limit:]]
    return _select_lines(place, above)[-limit:]


def read_between(event: LogEvent, end: int | None) -> list[str]:
    """Return the lines of all origins behind an event, and every state of a progress bar, without prefixes.

    Up to an offset, and within 128 KiB.
    """
    lines = _read_around(replace(event, end=end))[1][1:]
    states = filter(bytes.strip, chain.from_iterable(line.split(b"\r") for line in lines))
    return [split(state[:MAX_LINE_BYTES])[1].decode(errors="replace") for state in states]


def read_following(event: LogEvent, limit: int) -> list[str]:
    """Return the lines of the same origin after an event, at most `limit`."""
    return _read_same_origin(event)[1][1 : 1 + limit]


def find_time(event: LogEvent) -> str:
    """Return the time of the nearest line with a time, by the clock of that line's writer; empty for none."""
    above, below = _read_around(event)
    nearest_first = (*below[:1], *reversed(above), *below[1:])
    time = next(filter(None, map(time_of, nearest_first)), b"")
    return time.decode()


def _read_same_origin(event: LogEvent) -> tuple[list[str], list[str]]:
    """Return the event's origin's lines before the event, and the event's line with that origin's later lines."""
    above, below = _read_around(event)
    place = _place(split(below[0])[0]) if below else NOWHERE
    return _select_lines(place, above), _select_lines(place, below)


def _read_around(event: LogEvent) -> tuple[list[bytes], list[bytes]]:
    """Return the lines before the event, and the event's line with the lines after the event."""
    start = max(event.begin, event.offset - MAX_DISTANCE_BYTES)
    stop = event.offset + MAX_DISTANCE_BYTES if event.end is None else min(event.end, event.offset + MAX_DISTANCE_BYTES)
    try:
        data = read_range(event.path, start, stop - start)[0]
    except OSError:
        return [], [event.text.encode()]
    above, below = data[: event.offset - start], data[event.offset - start :]
    lines = blank_own_lines(above).split(b"\n")
    first_whole_line = 1 if start > event.begin else 0
    return lines[first_whole_line:-1], blank_own_lines(below).split(b"\n")


def _place(origin: LineOrigin) -> tuple[str, int | None]:
    return origin.node, origin.rank


_split_again = functools.lru_cache(maxsize=4096)(split)
"""The ranks of one failure write their lines close together, so that the lines around each are nearly the same."""


def _select_lines(place: tuple[str, int | None], lines: list[bytes]) -> list[str]:
    """Return the lines of one origin. In a log of one rank no line has a prefix: all lines have the same origin."""
    selected = []
    for line in lines:
        if not line.strip():
            continue
        origin, text = _split_again(line.rstrip(b"\r").rpartition(b"\r")[2][:MAX_LINE_BYTES])
        if _place(origin) == place and not text.startswith(NOISE):
            selected.append(text.decode(errors="replace").rstrip())
    return selected


def _shorten_traceback(lines: list[str]) -> list[str]:
    """Return the lines from the head of a traceback to the exception, without the middle of a long traceback."""
    traceback = lines[:1]
    for line in lines[1:]:
        traceback.append(line)
        if not line.startswith((" ", "\t")):
            break
    if len(traceback) <= MAX_TRACEBACK_LINES:
        return traceback
    return [traceback[0], "  ...", *traceback[2 - MAX_TRACEBACK_LINES :]]
