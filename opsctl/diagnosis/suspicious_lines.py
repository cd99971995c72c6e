"""The most suspicious lines at the end of a log, for a diagnosis that knows no cause."""

from __future__ import annotations

import os
import re
from pathlib import Path

from opsctl.diagnosis.speakers import split
from opsctl.state.files import open_regular

MAX_READ_BYTES = 256 << 10
"""Bytes at the end of an attempt's log in which suspicious lines are searched."""
MAX_LINES = 5
MAX_LINE_CHARS = 300
_SCORES = (
    (re.compile(r"(?i)\bfatal|panic|abort|core dumped|traceback|assert"), 4),
    (re.compile(r"(?i)error|exception|corrupt|crash"), 4),
    (
        re.compile(
            r"(?i)fail|denied|refused|cannot|can't|unable|invalid|not found|killed|timed? ?out|lost|dead\b|broken"
        ),
        3,
    ),
    (re.compile(r"(?i)\bwarn|unexpected|missing|exceed|retry|exit(?:ed|ing)"), 1),
    (re.compile(r"\bINFO\b|\bDEBUG\b|\b(?:no|0|without) (?:errors?|failures?|warnings?)\b"), -3),
)
"""Patterns and their scores; a line has the sum of the scores of its patterns."""


def find_suspicious_lines(log: Path, begin: int, end: int | None, *, falls_back: bool = True) -> tuple[str, ...]:
    """Return the lines with the highest scores, in their order; without any, the last lines if `falls_back`.

    `begin` and `end` are the offsets of the attempt in the log. Raises nothing.
    """
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = begin if begin <= size else 0
            end = size if end is None or not begin <= end <= size else end
            start = max(begin, end - MAX_READ_BYTES)
            data = os.pread(file.fileno(), end - start, start)
    except OSError:
        return ()
    lines = [line for line in map(_clean, re.split(rb"[\r\n]+", data)) if line]
    scores = {line: score for line in dict.fromkeys(lines) if (score := _score(line)) > 0}
    if not scores:
        return tuple(lines[-MAX_LINES:]) if falls_back else ()
    ranked = sorted(enumerate(scores), key=lambda entry: (scores[entry[1]], entry[0]))
    return tuple(line for _, line in sorted(ranked[-MAX_LINES:]))


def _clean(line: bytes) -> str:
    return split(line[: MAX_LINE_CHARS * 4])[1].decode(errors="replace").strip()[:MAX_LINE_CHARS]


def _score(line: str) -> int:
    return sum(score for pattern, score in _SCORES if pattern.search(line))
