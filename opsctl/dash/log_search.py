"""The log of a train in parts: its end, the lines that hold a text, and the first error of an attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.dash.clean_text import clean
from opsctl.diagnosis.causes import Weight, classify
from opsctl.errors import cannot_read
from opsctl.guard.attempt_record import read_start
from opsctl.state.files import read_range
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.log_lines import read_line

TAIL_BYTES = 1 << 18
SEARCH_BYTES = 32 << 20
"""Searched of a log: its newest part."""
MAX_LINES = 300
MAX_LINE_CHARS = 2000
MAX_QUERY_CHARS = 200
LINES_BEFORE = 20
MAX_ATTEMPTS = 5
"""Searched for an error: the newest."""
_HINT = re.compile(
    rb"(?i)error|exception|traceback|fatal|abort|fail|killed|xid|nccl|timed? ?out|out of memory|lost|no space|corrupt|"
    rb"signal|segmentation|cannot|denied|nan\b"
)
"""Lines without any of these words are not classified: classification takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """A line of the log."""

    offset: int
    speaker: str
    """Node and rank; empty for lines of the guard and of other programs."""
    text: str
    is_hit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExcerpt:
    """Some lines of a log, and what they are."""

    title: str
    lines: tuple[ShownLine, ...]


def read_log_tail(run: RunDir) -> LogExcerpt:
    """Return the last lines of the log. Raises RunDirError."""
    lines = _read_lines(run, -TAIL_BYTES, TAIL_BYTES)[-MAX_LINES:]
    return LogExcerpt(title=f"the last {len(lines)} lines" if lines else "no log yet", lines=_show(lines))


def search_log(run: RunDir, query: str) -> LogExcerpt:
    """Return the newest lines that hold `query`, in upper or lower case. Raises RunDirError."""
    query = query[:MAX_QUERY_CHARS]
    needle = query.casefold()
    lines = _read_lines(run, -SEARCH_BYTES, SEARCH_BYTES)
    found = [line for line in lines if needle in line[1].decode(errors="replace").casefold()]
    newest = found[-MAX_LINES:]
    older = f", the newest {len(newest)} are shown" if len(found) > len(newest) else ""
    title = f"{len(found)} line{'s' * (len(found) != 1)} with “{query}” in the last {SEARCH_BYTES >> 20} MiB{older}"
    return LogExcerpt(title=title, lines=_show(newest))


def find_first_error(run: RunDir, journal: Journal) -> LogExcerpt:
    """Return the lines about the first error of the newest attempt that has one. Raises RunDirError."""
    begins: dict[str, int] = {}
    for attempt in replay(journal.events()).started:
        if start := read_start(run.attempt(attempt)):
            begins[attempt] = start.main_log
    ends = dict(zip(begins, list(begins.values())[1:], strict=False))
    for attempt in list(reversed(begins))[:MAX_ATTEMPTS] or [""]:
        begin = begins.get(attempt, -SEARCH_BYTES)
        most = min(SEARCH_BYTES, ends[attempt] - begin) if attempt in ends else SEARCH_BYTES
        lines = _read_lines(run, begin, max(0, most))
        number = next((number for number, line in enumerate(lines) if _is_error(line[1])), None)
        if number is not None:
            first = max(0, number - LINES_BEFORE)
            of = f" of attempt {attempt}" if attempt else ""
            shown = _show(lines[first : first + MAX_LINES], hit=number - first)
            return LogExcerpt(title=f"about the first error{of}", lines=shown)
    return LogExcerpt(title=f"no known error in the log of the last {MAX_ATTEMPTS} attempts", lines=())


def _is_error(line: bytes) -> bool:
    if not _HINT.search(line):
        return False
    cause = classify(clean(read_line(line).text.decode(errors="replace"))[:MAX_LINE_CHARS])
    return cause is not None and cause.weight >= Weight.DEATH


def _show(lines: Sequence[tuple[int, bytes]], hit: int = -1) -> tuple[ShownLine, ...]:
    """Return lines as they are shown; `hit` is the number of the line that was looked for."""
    shown = []
    for number, (offset, raw) in enumerate(lines):
        line = read_line(raw)
        speaker = f"{line.node}:{line.rank}" if line.node is not None else ""
        text = clean(line.text.decode(errors="replace"))[:MAX_LINE_CHARS]
        shown.append(ShownLine(offset=offset, speaker=speaker, text=text, is_hit=number == hit))
    return tuple(shown)


def _read_lines(run: RunDir, begin: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """Return the lines of a part of the log with their offsets, without empty ones. Raises RunDirError."""
    try:
        data, size = read_range(run.main_log, begin, max_bytes)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(run.main_log, error) from error
    offset = begin if begin >= 0 else max(0, size + begin)
    is_cut = begin < 0 and offset > 0
    lines = []
    for number, raw in enumerate(data.split(b"\n")):
        if raw and not (is_cut and number == 0):
            lines.append((offset, raw))
        offset += len(raw) + 1
    return lines
