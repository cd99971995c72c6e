"""Scan logs of any size, from the end backwards, for lines that may name the cause of an attempt's end.

A training step needs every rank, so a line that two steps follow did not end the attempt. The scan covers the lines
after the last but one sign of progress, or the whole log without such signs. Several runs may have been appended to a
log, or a launcher may start again: the scan finds where the last run begins.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path

from opsctl.base.errors import cannot_read
from opsctl.base.tables import read_byte_patterns
from opsctl.diagnosis.causes import UNEXPLAINED, Cause, Weight, causes, classify, read_table
from opsctl.diagnosis.line_origin import UNKNOWN_ORIGIN, LineOrigin, split
from opsctl.diagnosis.progress_marks import LastProgress, find_advance
from opsctl.state.files import open_regular, read_range
from opsctl.telemetry.logs.log_lines import PREFIX, blank_own_lines

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 4000
"""Bytes of a line that are evaluated. A longer line is a data dump."""
MAX_SHAPES = 20_000
"""Kinds of lines that are classified, from the end of the log on. More kinds are a data dump."""
_GATE = read_table("gate")
GATE = re.compile("|".join(_GATE["expressions"]).encode())
"""A cheap filter for lines. Its first letters are rare in a log of numbers."""
GATE_WORDS = tuple(word.encode() for word in _GATE["words"])
"""Texts that find further lines. A known line holds one of these or matches GATE."""
MAX_SCAN_BYTES = 256 << 20
"""Bytes at the end of an attempt's log that are read, if no sign of progress shortens the search."""
MAX_PROGRESS_BYTES = 16 << 20
"""Bytes at the end of an attempt's log in which progress is searched. A trainer logs less between two steps."""
MAX_START_BYTES = 1 << 20
"""Bytes at the end of an attempt's log in which the start of a further run is searched."""
JOB_ENDS = b" CANCELLED AT "
MAX_JOB_END_BYTES = 32 << 10
"""Bytes at the end of a log in which Slurm's word about the end of the job counts though steps follow: ranks go on
until Slurm kills them."""
MIN_DISTANCE_BYTES = 400
"""A line of the same cause within this distance belongs to the same failure."""

_SHAPE = re.compile(rb"0x[0-9a-f]+|\d{4,}")
_CHANGING = re.compile(rb"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?|0x[0-9a-f]+|\d{4,}")
"""Parts of a line that differ between attempts."""
MAX_EARLIER_BYTES = 1 << 20
"""Bytes at the beginning of an earlier attempt's log in which lines are looked up."""
_DEVICE = re.compile(r"NVRM: Xid \((?P<gpu>PCI:[\da-fA-F:.]+)\)")
HEAD_BYTES = 16 << 10
"""Bytes at the beginning of a log that show how a run begins."""
MAX_HEAD_LINES = 16
MIN_SHAPE_CHARS = 12
MIN_REPEATED_LINES = 3
"""Lines of the beginning that occur again where a run begins."""
MAX_START_LINES = 60
"""Lines among which those of a beginning stand: ranks and programs write between them."""
_STARTS = read_byte_patterns("diagnosis/patterns.toml", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """The first or the last line in which one origin reports one cause."""

    cause: Cause
    origin: LineOrigin
    text: str
    path: Path
    offset: int
    """Offset of the line in its log, in bytes: the order of the events of one log."""
    peer: str = ""
    """Host name or address of the peer that the line names."""
    missing: int | None = None
    """The first rank that the line names as missing in a collective."""
    begin: int = 0
    """Offset in the log where the attempt begins, in bytes."""
    end: int | None = None
    """Offset in the log where the attempt ends, in bytes; None for the end of the log."""
    last_start: int = 0
    """Offset where the last of several runs in the log begins; 0 for a log of one run."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """The events of one log, in order."""

    events: list[LogEvent] = field(default_factory=list)
    iteration: int | None = None
    """The last iteration in the log."""


def scan(
    path: Path,
    *,
    begin: int = 0,
    end: int | None = None,
    known: LineOrigin = UNKNOWN_ORIGIN,
    pattern: str = "",
    survived: frozenset[bytes] = frozenset(),
) -> Scan:
    """Scan a log between two offsets. A missing log has no events. Raises RunDirError for an unreadable log.

    `pattern` is that of the steps in TRAIN.toml; lines of the shapes `survived` are no events.
    """
    causes()  # a missing table is no missing log
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = begin if begin <= size else 0  # another log has replaced this log
            end = size if end is None or end > size or end < begin else end
            return _LogScanner(path, known, begin, end, pattern, survived).read(file.fileno())
    except FileNotFoundError:
        return Scan()
    except OSError as error:
        raise cannot_read(path, error) from error


def find_survived(path: Path, attempts: Iterable[tuple[int, int]], pattern: str = "") -> frozenset[bytes]:
    """Return the shapes of the lines behind which earlier attempts went on, by where these begin and end in a log.

    Such a line is no cause: a warning of the start, or a retry. Raises nothing.
    """
    shapes: set[bytes] = set()
    with suppress(OSError):
        for begin, end in attempts:
            data = blank_own_lines(read_range(path, begin, max(0, min(end - begin, MAX_EARLIER_BYTES)))[0])
            lines = select_lines(data[: find_advance(data, pattern)])
            shapes |= {_find_shape(split(line)[1]) for _, line in lines}
    return frozenset(shapes)


def _find_shape(text: bytes) -> bytes:
    return _CHANGING.sub(b"#", text.rstrip())


@dataclass(slots=True)
class _LogScanner:
    path: Path
    known: LineOrigin
    begin: int
    end: int
    pattern: str
    survived: frozenset[bytes]
    progress: LastProgress = field(default_factory=LastProgress)
    kinds: dict[bytes, Cause | None] = field(default_factory=dict)
    events: dict[tuple[str, Weight, LineOrigin], LogEvent] = field(default_factory=dict)
    repeated: dict[tuple[str, Weight, LineOrigin], LogEvent] = field(default_factory=dict)
    """The last lines of the same keys: a program may have survived the first."""

    def read(self, handle: int) -> Scan:
        for at, chunk in _chunks_from_end(handle, max(self.begin, self.end - MAX_SCAN_BYTES), self.end):
            boundary = self.progress.find_boundary()
            if boundary is None and at + len(chunk) > self.end - MAX_PROGRESS_BYTES:
                self.progress.feed(chunk, at, self.pattern)
                boundary = self.progress.find_boundary()
            self._find_events(at, chunk, boundary or self.begin)
            if boundary is not None and at <= boundary:
                break
        later = [
            last for key, last in self.repeated.items() if last.offset - self.events[key].offset > MIN_DISTANCE_BYTES
        ]
        found = {event.offset: event for event in (*self.events.values(), *later)}
        start = self._find_last_start(handle) if found else 0
        events = [replace(found[offset], last_start=start) for offset in sorted(found)]
        return Scan(events=events, iteration=self.progress.step)

    def _find_last_start(self, handle: int) -> int:
        """Return where the last of several runs in the log begins; 0 for a log of one run."""
        at = max(self.begin, self.end - MAX_START_BYTES)
        head = os.pread(handle, min(HEAD_BYTES, self.end - self.begin), self.begin)
        data = os.pread(handle, self.end - at, at)
        start = find_last_start(head, data, at - self.begin)
        return max(start and self.begin + start, find_last_process(data, at))

    def _find_events(self, at: int, chunk: bytes, boundary: int) -> None:
        """Add the events of a chunk behind a boundary. An earlier event of the same cause and origin comes first."""
        chunk_events: dict[tuple[str, Weight, LineOrigin], LogEvent] = {}
        for start, line in select_lines(chunk):
            if at + start < boundary and not (JOB_ENDS in line and at + start > self.end - MAX_JOB_END_BYTES):
                continue
            origin, text = split(line, self.known)
            cause = self._classify(text)
            if cause is None or (cause is not UNEXPLAINED and _find_shape(text) in self.survived):
                continue
            event = self._event(cause, origin, text, at + start)
            key = (cause.name, cause.weight, event.origin)
            chunk_events.setdefault(key, event)
            self.repeated[key] = max(self.repeated.get(key, event), event, key=lambda found: found.offset)
        self.events |= chunk_events

    def _classify(self, text: bytes) -> Cause | None:
        """Classify a line, with a cache: lines of many ranks differ only in large numbers."""
        shape = _SHAPE.sub(b"#", text)
        if shape not in self.kinds:
            if len(self.kinds) > MAX_SHAPES:
                return None
            self.kinds[shape] = classify(text.decode(errors="replace").rstrip())
        return self.kinds[shape]

    def _event(self, cause: Cause, origin: LineOrigin, text: bytes, offset: int) -> LogEvent:
        decoded = text.decode(errors="replace").rstrip()
        match = cause.pattern.search(decoded) or _DEVICE.search(decoded)
        groups = {name: value for name, value in (match.groupdict() if match else {}).items() if value}
        if "node" in groups:
            origin = LineOrigin(node=groups["node"], rank=_first_rank(groups.get("ranks")))
        if "gpu" in groups:
            origin = LineOrigin(node=origin.node, rank=origin.rank, gpu=groups["gpu"])
        return LogEvent(
            cause=cause,
            origin=origin,
            text=decoded,
            path=self.path,
            offset=offset,
            peer=groups.get("peer", ""),
            missing=None if "node" in groups else _first_rank(groups.get("ranks")),
            begin=self.begin,
            end=self.end,
        )


def select_lines(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that pass the gate with their offsets, in order. Of a progress bar, yield the matching state."""
    spans: dict[int, int] = {}
    position = 0
    while gate := GATE.search(chunk, position):
        start, position = _line_around(chunk, gate.start())
        spans[start] = position
    for word in GATE_WORDS:
        found = chunk.find(word)
        while found >= 0:
            start, stop = _line_around(chunk, found)
            spans[start] = stop
            found = chunk.find(word, stop)
    for start, stop in sorted(spans.items()):
        yield start, _restore_prefix(chunk, start) + chunk[start : min(stop, start + MAX_LINE_BYTES)]


def _restore_prefix(chunk: bytes, start: int) -> bytes:
    """Return the prefix of the line if `start` is inside a line, after a carriage return."""
    if not chunk.startswith(b"\r", max(0, start - 1)):
        return b""
    begin = chunk.rfind(b"\n", max(0, start - MAX_LINE_BYTES * 16), start) + 1
    prefix = PREFIX.match(chunk, begin)
    return prefix[0] if prefix else b""


def _first_rank(ranks: str | None) -> int | None:
    match = re.match(r"\d{1,7}", ranks or "")
    return int(match[0]) if match else None


def _chunks_from_end(handle: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of whole lines with their offsets, the last chunk first. A line longer than a chunk is cut."""
    rest = b""
    while end > begin:
        at = max(begin, end - CHUNK_BYTES)
        data = os.pread(handle, end - at, at) + rest
        end, rest = at, b""
        if at > begin:
            cut = data.find(b"\n") + 1
            if 0 < cut < MAX_LINE_BYTES * 16:
                rest, data, at = data[:cut], data[cut:], at + cut
        yield at, blank_own_lines(data)


def _line_around(chunk: bytes, position: int) -> tuple[int, int]:
    """Return where the line around a position starts and stops; a carriage return starts a line as well."""
    stop = chunk.find(b"\n", position)
    stop = len(chunk) if stop < 0 else stop
    start = chunk.rfind(b"\n", 0, position) + 1
    return max(start, chunk.rfind(b"\r", start, position) + 1), stop


def find_last_start(head: bytes, data: bytes, at: int) -> int:
    """Return where the beginning `head` of a log last occurs again in its part from offset `at` on; 0 for nowhere."""
    shapes = _list_start_shapes(head)
    new = set(shapes) if at == 0 else set()
    last = first = start = 0
    offset, recent = at, set[bytes]()
    for number, line in enumerate(data.split(b"\n")):
        shape = _find_start_shape(line)
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
    if _STARTS["of_others"].search(data):
        return 0
    own = [
        match
        for match in _STARTS["traceback"].finditer(data)
        if not _STARTS["part_of_failure"].match(match["above"] or b"")
    ]
    again = [before.end() for before, after in pairwise(own) if before["script"] == after["script"]]
    return at + again[-1] if again else 0


def _list_start_shapes(head: bytes) -> list[bytes]:
    """Return the shapes of the first lines that may begin a run. What each rank writes occurs once a rank."""
    lines = head[: head.rfind(b"\n") + 1].split(b"\n")
    of_start = (line for line in lines if not _STARTS["of_failure"].search(line) and not split(line)[0].is_known)
    return list(dict.fromkeys(islice(filter(None, map(_find_start_shape, of_start)), MAX_HEAD_LINES)))


def _find_start_shape(line: bytes) -> bytes:
    """Return a line without the parts that differ between runs; empty for a line that says too little."""
    return _STARTS["varying"].sub(b"#", line[:300].strip()) if len(line) >= MIN_SHAPE_CHARS else b""
