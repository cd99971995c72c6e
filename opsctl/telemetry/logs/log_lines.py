"""Lines of logs: cut from what arrives, read for who said them, put in order of time. All of it bytes, as written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LONGEST_LINE = 1 << 20
"""What has no line end for so long is cut, so that a binary dump does not fill the memory."""

_PREFIX = re.compile(rb"\[([^\[\]\s:]+):(\d{1,9})\]: ?")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")


@dataclass(slots=True)
class LineBuffer:
    """Cuts a stream of bytes into complete lines, without their ends, and keeps what is not complete yet."""

    partial: bytes = b""

    def feed(self, data: bytes) -> list[bytes]:
        if b"\n" not in data and len(self.partial) + len(data) < LONGEST_LINE:
            self.partial += data
            return []
        *lines, self.partial = (self.partial + data).split(b"\n")
        if len(self.partial) >= LONGEST_LINE:
            lines.append(self.rest())
        return lines

    def rest(self) -> bytes:
        """What is not complete, given up."""
        partial, self.partial = self.partial, b""
        return partial


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of main_log: who said what. Lines of the guard and of other programs have no node and rank."""

    node: str | None
    rank: int | None
    text: bytes


def read_line(line: bytes) -> LogLine:
    """Understands `[node:rank]: text`; anything else is text."""
    match = _PREFIX.match(line)
    if match is None:
        return LogLine(node=None, rank=None, text=line)
    return LogLine(node=match[1].decode(errors="replace"), rank=int(match[2]), text=line[match.end() :])


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*(?!m)[@-~]"  # moves the cursor, clears, asks the terminal to answer; `m` is only colour
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # titles, clipboards, files: whatever the terminal offers
    r"|\x1b(?!\[).?"
    r"|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b(?!\[[0-?]*m)")


def for_terminal(line: bytes) -> str:
    """A line that does nothing to a terminal but colour it. Of a progress bar, its last state."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    shown = _COLOUR.sub("", _ESCAPES.sub("", text))
    return shown + "\x1b[0m" if "\x1b" in shown else shown


def time_of(line: bytes) -> bytes | None:
    """The first date with time in the beginning of a line, in a form that sorts. It has no time zone."""
    match = _TIME.search(line, 0, 200)
    return match[0].replace(b"T", b" ") if match else None


def merge(main: Iterable[bytes], pulse: Iterable[bytes]) -> Iterator[bytes]:
    """Both logs in order of time, each keeping its own order.

    Most lines of the main log bear no time, so a pulse line stands before the first main line with a later one; where
    there is none, at the end.
    """
    waiting = iter(pulse)
    pulse_line = next(waiting, None)
    for line in main:
        now = time_of(line) if pulse_line is not None else None
        while now is not None and pulse_line is not None and (time_of(pulse_line) or b"") < now:
            yield pulse_line
            pulse_line = next(waiting, None)
        yield line
    if pulse_line is not None:
        yield pulse_line
        yield from waiting
