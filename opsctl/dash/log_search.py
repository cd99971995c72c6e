"""The log of a train in parts: its end, the lines that hold a text, and the first error of an attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.dash.plain_text import clean
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
    lines = list(_read_lines(run, -TAIL_BYTES, TAIL_BYTES))[-MAX_LINES:]
    return LogExcerpt(title=f"the last {len(lines)} lines" if lines else "no log yet", lines=tuple(lines))


def search_log(run: RunDir, query: str) -> LogExcerpt:
    """Return the newest lines that hold `query`, in upper or lower case. Raises RunDirError."""
    needle = query[:MAX_QUERY_CHARS].casefold()
    found = [line for line in _read_lines(run, -SEARCH_BYTES, SEARCH_BYTES) if needle in line.text.casefold()]
    lines = tuple(found[-MAX_LINES:])
    older = f", the newest {len(lines)} are shown" if len(found) > len(lines) else ""
    title = f"{len(found)} lines with “{query[:MAX_QUERY_CHARS]}” in the last {SEARCH_BYTES >> 20} MiB{older}"
    return LogExcerpt(title=title, lines=lines)


def find_first_error(run: RunDir, journal: Journal) -> LogExcerpt:
    """Return the lines about the first error of the newest attempt that has one. Raises RunDirError."""
    attempts = list(replay(journal.events()).started)
    ends: dict[str, int] = {}
    begins = {attempt: start.main_log for attempt in attempts if (start := read_start(run.attempt(attempt)))}
    for before, after in zip(begins, list(begins)[1:], strict=False):
        ends[before] = begins[after]
    for attempt in list(reversed(begins))[:5] or [""]:
        begin = begins.get(attempt, -SEARCH_BYTES)
        most = min(SEARCH_BYTES, ends[attempt] - begin) if attempt in ends else SEARCH_BYTES
        excerpt = _find_error(list(_read_lines(run, begin, max(0, most))), attempt)
        if excerpt:
            return excerpt
    return LogExcerpt(title="no error is known in the log of the last 5 attempts", lines=())


def _find_error(lines: list[ShownLine], attempt: str) -> LogExcerpt | None:
    for number, line in enumerate(lines):
        if _is_error(line.text):
            first = max(0, number - LINES_BEFORE)
            shown = [*lines[first:number], _mark(line), *lines[number + 1 : first + MAX_LINES]]
            of = f" of attempt {attempt}" if attempt else ""
            return LogExcerpt(title=f"about the first error{of}", lines=tuple(shown))
    return None


def _is_error(text: str) -> bool:
    if not _HINT.search(text.encode()):
        return False
    cause = classify(text)
    return cause is not None and cause.weight >= Weight.DEATH


def _mark(line: ShownLine) -> ShownLine:
    return ShownLine(offset=line.offset, speaker=line.speaker, text=line.text, is_hit=True)


def _read_lines(run: RunDir, begin: int, max_bytes: int) -> Iterator[ShownLine]:
    """Yield the complete lines of a part of the log. Raises RunDirError."""
    try:
        data, size = read_range(run.main_log, begin, max_bytes)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_read(run.main_log, error) from error
    offset = begin if begin >= 0 else max(0, size + begin)
    lines = data.split(b"\n")
    if offset and begin < 0:
        offset += len(lines[0]) + 1
        lines = lines[1:]  # begins in the middle
    for raw in lines:
        if raw:
            line = read_line(raw)
            speaker = f"{line.node}:{line.rank}" if line.node is not None else ""
            text = clean(line.text.decode(errors="replace"))[:MAX_LINE_CHARS]
            yield ShownLine(offset=offset, speaker=clean(speaker), text=text)
        offset += len(raw) + 1
