"""Find where the last run begins in a log to which several runs were appended, or in which a launcher starts again."""

from __future__ import annotations

import re
from itertools import islice

from opsctl.diagnosis.speakers import split

HEAD_BYTES = 16 << 10
"""Bytes at the beginning of a log that show how a run begins."""
MAX_HEAD_LINES = 16
MIN_SHAPE_CHARS = 12
MIN_REPEATED_LINES = 3
"""Lines of the beginning that occur again, in their order, where a run begins."""
MAX_START_LINES = 60
"""Lines among which those of a beginning stand: ranks and programs write between them."""
_VARYING = re.compile(rb"\d+|0x[0-9a-f]+|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|[A-Z][a-z]{2}(?= +#))\b")
_OF_FAILURE = re.compile(rb"^\s|^Traceback|Error|Exception|\*{8}|={8}|-{8}|[Ww]arning")
"""Lines of tracebacks, rulers and warnings: each rank writes these, and none begins a run."""


def find_last_start(head: bytes, data: bytes, at: int) -> int:
    """Return the offset of the last repeated beginning in a part of a log that begins at `at`; 0 for none.

    `head` is the beginning of the log.
    """
    shapes = _list_shapes(head)
    if len(shapes) < MIN_REPEATED_LINES:
        return 0
    ranks = {shape: rank for rank, shape in enumerate(shapes)}
    new = set(shapes) if at == 0 else set()
    found: list[tuple[int, int, int]] = []
    offset = at
    for number, line in enumerate(data.split(b"\n")):
        shape = _find_shape(line)
        if shape in new:
            new.discard(shape)
        elif shape in ranks:
            found.append((number, ranks[shape], offset))
        offset += len(line) + 1
    return max(_list_starts(found), default=0)


def _list_starts(found: list[tuple[int, int, int]]) -> list[int]:
    """Return the offsets behind which enough lines of the beginning follow in their order."""
    starts = []
    for index, (number, rank, offset) in enumerate(found):
        highest, count = rank, 1
        for later_number, later_rank, _ in islice(found, index + 1, index + 1 + MAX_START_LINES):
            if later_number - number > MAX_START_LINES:
                break
            if later_rank > highest:
                highest, count = later_rank, count + 1
        if count >= MIN_REPEATED_LINES:
            starts.append(offset)
    return starts


def _list_shapes(head: bytes) -> list[bytes]:
    lines = (line for line in head[: head.rfind(b"\n") + 1].split(b"\n") if _is_of_start(line))
    shapes = (_find_shape(line) for line in lines)
    return list(dict.fromkeys(islice((shape for shape in shapes if shape), MAX_HEAD_LINES)))


def _is_of_start(line: bytes) -> bool:
    """Return whether a line may begin a run. Lines with the number of their rank occur once a rank."""
    return not _OF_FAILURE.search(line) and not split(line)[0].is_known


def _find_shape(line: bytes) -> bytes:
    """Return a line without the parts that differ between runs; empty for a line that says too little."""
    if len(line) < MIN_SHAPE_CHARS:
        return b""
    return _VARYING.sub(b"#", line[:300].strip())
