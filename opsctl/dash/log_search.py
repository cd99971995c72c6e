"""The log of a train in parts: its end, the lines that hold a text, and the first error of an attempt."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from opsctl.base.errors import cannot_read
from opsctl.diagnosis.causes import Weight, classify
from opsctl.guard.attempt_record import read_start
from opsctl.state.files import read_range
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.log_lines import plain, read_line

TAIL_BYTES = 1 << 18
SEARCH_BYTES = 32 << 20
"""Searched of a log: its newest part."""
MAX_LINES = 300
MAX_LINE_CHARS = 2000
MAX_LINE_BYTES = 64 << 10
"""Read of a line: its end, the last state of a progress bar."""
MAX_READ_LINES = 1_000_000
"""Of a log with more lines, such as empty ones, only the newest part is read."""
MAX_CLASSIFIED = 20_000
"""Lines of an attempt that are classified: one takes about 0.1 ms."""
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
    offset: int
    origin: str
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
    lines = list(deque(_read_lines(run, -TAIL_BYTES, TAIL_BYTES), maxlen=MAX_LINES))
    return LogExcerpt(title=f"the last {len(lines)} lines" if lines else "no log yet", lines=_show(lines))


def search_log(run: RunDir, query: str) -> LogExcerpt:
    """Return the newest lines that hold `query`, in upper or lower case. Raises RunDirError."""
    query = query[:MAX_QUERY_CHARS]
    needle = query.casefold()
    lines = _read_lines(run, -SEARCH_BYTES, SEARCH_BYTES)
    count, newest = 0, deque[tuple[int, bytes]](maxlen=MAX_LINES)
    for line in lines:
        if needle in line[1].decode(errors="replace").casefold():
            count += 1
            newest.append(line)
    older = f", the newest {len(newest)} are shown" if count > len(newest) else ""
    title = f"{count} line{'s' * (count != 1)} with “{query}” in the last {SEARCH_BYTES >> 20} MiB{older}"
    return LogExcerpt(title=title, lines=_show(list(newest)))


def read_attempt_end(run: RunDir, journal: Journal, attempt: str) -> LogExcerpt:
    """Return the last lines of one attempt. Raises RunDirError."""
    begins, ends = _find_bounds(run, journal)
    if attempt not in begins:
        return LogExcerpt(title="the log does not show where this attempt begins", lines=())
    if attempt not in ends:
        return read_log_tail(run)
    begin = max(begins[attempt], ends[attempt] - TAIL_BYTES)
    lines = list(deque(_read_lines(run, begin, ends[attempt] - begin), maxlen=MAX_LINES))
    job = attempt.rpartition(".")[0]
    return LogExcerpt(title=f"the last {len(lines)} lines of job {job}", lines=_show(lines, hit=len(lines) - 1))


def _find_bounds(run: RunDir, journal: Journal) -> tuple[dict[str, int], dict[str, int]]:
    """Return where every attempt begins in the log, and where every attempt but the newest ends."""
    begins: dict[str, int] = {}
    for attempt in replay(journal.events()).attempts:
        if start := read_start(run.attempt(attempt)):
            begins[attempt] = start.main_log
    return begins, dict(zip(begins, list(begins.values())[1:], strict=False))


def find_first_error(run: RunDir, journal: Journal) -> LogExcerpt:
    """Return the lines about the first error of the newest attempt that has one. Raises RunDirError."""
    begins, ends = _find_bounds(run, journal)
    for attempt in list(reversed(begins))[:MAX_ATTEMPTS] or [""]:
        begin = begins.get(attempt, -SEARCH_BYTES)
        most = min(SEARCH_BYTES, ends[attempt] - begin) if attempt in ends else SEARCH_BYTES
        lines = _read_lines(run, begin, max(0, most))
        before = deque[tuple[int, bytes]](maxlen=LINES_BEFORE)
        classified = 0
        for line in lines:
            has_hint = classified < MAX_CLASSIFIED and bool(_HINT.search(line[1]))
            classified += has_hint
            if has_hint and _is_error(line[1]):
                number = len(before)
                shown = _show([*before, line, *islice(lines, MAX_LINES - number - 1)], hit=number)
                of = f" of attempt {attempt}" if attempt else ""
                return LogExcerpt(title=f"about the first error{of}", lines=shown)
            before.append(line)
    return LogExcerpt(title=f"no known error in the log of the last {MAX_ATTEMPTS} attempts", lines=())


def _is_error(line: bytes) -> bool:
    cause = classify(plain(read_line(line).text[:MAX_LINE_BYTES].decode(errors="replace"))[:MAX_LINE_CHARS])
    return cause is not None and cause.weight >= Weight.DEATH


def _show(lines: Sequence[tuple[int, bytes]], hit: int = -1) -> tuple[ShownLine, ...]:
    """Return lines as they are shown; `hit` is the number of the line that was looked for."""
    shown = []
    for number, (offset, raw) in enumerate(lines):
        line = read_line(raw)
        origin = f"{line.node}:{line.rank}" if line.node is not None else ""
        text = plain(line.text[-MAX_LINE_BYTES:].decode(errors="replace"))[:MAX_LINE_CHARS]
        shown.append(ShownLine(offset=offset, origin=origin, text=text, is_hit=number == hit))
    return tuple(shown)


def _read_lines(run: RunDir, begin: int, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a part of the log with their offsets, without empty ones. Raises RunDirError.

    One at a time: millions of short lines would take a hundred times the memory of their text.
    """
    try:
        data, size = read_range(run.main_log, begin, max_bytes)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_read(run.main_log, error) from error
    start = begin if begin >= 0 else max(0, size + begin)
    while data.count(b"\n") > MAX_READ_LINES:
        start += len(data) - len(data) // 2
        data = data[-(len(data) // 2) :]
        begin = -1  # cut within a line
    at = data.find(b"\n") + 1 or len(data) if begin < 0 and start > 0 else 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if end > at:
            yield start + at, data[at:end]
        at = end + 1
