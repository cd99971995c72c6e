"""Find where the last run begins in a log to which several runs were appended, or in which a launcher starts again."""

from itertools import islice, pairwise

from opsctl.base.tables import read_byte_patterns
from opsctl.diagnosis.speakers import split

HEAD_BYTES = 16 << 10
"""Bytes at the beginning of a log that show how a run begins."""
MAX_HEAD_LINES = 16
MIN_SHAPE_CHARS = 12
MIN_REPEATED_LINES = 3
"""Lines of the beginning that occur again where a run begins."""
MAX_START_LINES = 60
"""Lines among which those of a beginning stand: ranks and programs write between them."""
_PATTERNS = read_byte_patterns("diagnosis/patterns.toml", "runs")


def find_last_start(head: bytes, data: bytes, at: int) -> int:
    """Return where the beginning `head` of a log last occurs again in its part from offset `at` on; 0 for nowhere."""
    shapes = _list_shapes(head)
    new = set(shapes) if at == 0 else set()
    last = first = start = 0
    offset, recent = at, set[bytes]()
    for number, line in enumerate(data.split(b"\n")):
        shape = _find_shape(line)
        if shape in new:
            new.discard(shape)
        elif shape in shapes:
            if shape in recent or (recent and number - first > MAX_START_LINES):
                recent.clear()
            first, start = (first, start) if recent else (number, offset)
            recent.add(shape)
            last = start if len(recent) >= MIN_REPEATED_LINES else last
        offset += len(line) + 1
    return last


def find_last_process(data: bytes, at: int) -> int:
    """Return where a program was started again behind its traceback, in a part of a log from offset `at` on.

    One process at a time wrote the log: else, and for a single traceback, return 0.
    """
    if _PATTERNS["of_others"].search(data):
        return 0
    own = [
        match
        for match in _PATTERNS["traceback"].finditer(data)
        if not _PATTERNS["part_of_failure"].match(match["above"] or b"")
    ]
    again = [before.end() for before, after in pairwise(own) if before["script"] == after["script"]]
    return at + again[-1] if again else 0


def _list_shapes(head: bytes) -> list[bytes]:
    """Return the shapes of the first lines that may begin a run. What each rank writes occurs once a rank."""
    lines = head[: head.rfind(b"\n") + 1].split(b"\n")
    of_start = (line for line in lines if not _PATTERNS["of_failure"].search(line) and not split(line)[0].is_known)
    return list(dict.fromkeys(islice(filter(None, map(_find_shape, of_start)), MAX_HEAD_LINES)))


def _find_shape(line: bytes) -> bytes:
    """Return a line without the parts that differ between runs; empty for a line that says too little."""
    return _PATTERNS["varying"].sub(b"#", line[:300].strip()) if len(line) >= MIN_SHAPE_CHARS else b""
