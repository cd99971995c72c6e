"""Lines of logs, in bytes: split from a stream, parsed for their node and rank, merged in order of time."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_LINE_BYTES = 1 << 20
"""A longer line is cut, so that a binary dump does not fill the memory."""

PREFIX = re.compile(rb"\[([^\[\]\s:]+):(\d{1,9})\]: ?")
"""Node and rank at the start of a line of main_log."""
RANKS_LOG = re.compile(r"(?P<node>.+)-(?P<first>\d{1,7})(?:\.\.(?P<last>\d{1,7}))?\.log")
"""Names of the log of one rank, with its output unchanged, and of the ranks of a node, with a prefix in each line."""
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_OWN_MARKS = (b"opsctl: ", b"Z DEBUG   ", b"Z INFO    ", b"Z WARNING ", b"Z ERROR   ", b"Z CRITICAL ")
_OWN = re.compile(
    rb"^(?:\[[^\[\]\s:]{1,255}(?::\d{1,9})?\]: ?| *\d{1,7}: |\[\d+,\d+\]<std(?:err|out)>: ?){0,2}"
    rb"(?:opsctl: |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?:DEBUG  |INFO   |WARNING|ERROR  |CRITICAL) "
    rb"(?=[a-z_ ]{10})[a-z_]+ )"
    rb".*(?:\n {4}.*)*",
    re.MULTILINE,
)
"""A message of opsctl with its further lines: a record of log_config.py, or `opsctl: MESSAGE`."""


@dataclass(slots=True)
class LineBuffer:
    """Splits a stream of bytes into complete lines, without line ends, and stores the incomplete rest."""

    partial: bytes = b""

    def feed(self, data: bytes) -> list[bytes]:
        if b"\n" not in data and len(self.partial) + len(data) < MAX_LINE_BYTES:
            self.partial += data
            return []
        *lines, self.partial = (self.partial + data).split(b"\n")
        if len(self.partial) >= MAX_LINE_BYTES:
            lines.append(self.rest())
        return lines

    def rest(self) -> bytes:
        """Return the incomplete line, and forget it."""
        partial, self.partial = self.partial, b""
        return partial


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of main_log with its node and rank. Lines of the guard and of other programs have neither."""

    node: str | None
    rank: int | None
    text: bytes


def read_line(line: bytes) -> LogLine:
    """Parse `[node:rank]: text`. Any other line is only text."""
    match = PREFIX.match(line)
    if match is None:
        return LogLine(node=None, rank=None, text=line)
    return LogLine(node=match[1].decode(errors="replace"), rank=int(match[2]), text=line[match.end() :])


def is_own_line(line: bytes) -> bool:
    """Return whether opsctl wrote a line of a log."""
    return _OWN.match(line) is not None


def blank_own_lines(data: bytes) -> bytes:
    """Return the text of a log with spaces in place of opsctl's own lines: what opsctl says is no evidence."""
    if not any(mark in data for mark in _OWN_MARKS):
        return data
    return _OWN.sub(lambda match: re.sub(rb"[^\n]", b" ", match[0]), data)


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*(?!m)[@-~]"  # moves the cursor, clears, asks the terminal to answer; `m` is only colour
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # titles, clipboards, files
    r"|\x1b(?!\[).?"
    r"|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]"
    # Invisible, or changes the direction of writing.
    r"|[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
    r"\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-?]*m")
_ESCAPE_WITHOUT_COLOUR = re.compile(r"\x1b(?!\[[0-?]*m)")


def for_terminal(line: bytes) -> str:
    """Return a line without terminal controls other than colour. Of a progress bar, return the last state."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    shown = _ESCAPE_WITHOUT_COLOUR.sub("", _ESCAPES.sub("", text))
    return shown + "\x1b[0m" if "\x1b" in shown else shown


def harmless(text: str) -> str:
    """Return text of logs, nodes or other users without control characters and invisible characters, except colours."""
    return "\n".join(for_terminal(line.encode(errors="replace")) for line in text.split("\n"))


def plain(text: str) -> str:
    """Return harmless text without colours."""
    return _COLOUR.sub("", harmless(text))


def time_of(line: bytes) -> bytes | None:
    """Return the first date with time near the beginning of a line, in a sortable form without time zone."""
    match = _TIME.search(line, 0, 200)
    return match[0].replace(b"T", b" ") if match else None


def merge(main: Iterable[bytes], pulse: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of both logs in order of time. The order within one log does not change.

    Most lines of the main log have no time. A pulse line comes before the first main line with a later time, else at
    the end.
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
