"""Scan logs of any size, from the end backwards, for lines that may name the cause of an attempt's end.

A training step needs every rank, so a line that two iterations follow did not end the attempt. The scan covers the
lines after the last but one iteration, or the whole log without iterations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.diagnosis.causes import Cause, classify
from opsctl.diagnosis.speakers import UNKNOWN_SPEAKER, Speaker, split
from opsctl.errors import cannot_read
from opsctl.state.files import open_regular
from opsctl.telemetry.progress.iteration_lines import parse

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 4000
"""Bytes of a line that are evaluated. A longer line is a data dump."""
MAX_CACHED_SHAPES = 20_000
"""Kinds of lines whose classification is cached."""
GATE = re.compile(
    rb"A(?:ddress already|ssertion)|B(?:us error|roken pipe)|C(?:UDA|ANCELLED|annot s|onnect|all to)"
    rb"|D(?:ataLoader|isk quota|etected|ist|UE TO)|E(?:rr(?:no|or)|RROR|xcept|ADDR|xited)|F(?:atal|loating)"
    rb"|I(?:llegal|nput/)|Kill|N(?:VRM|aN|CCL WARN|o (?:space|module)|ode fail|ET/IB)|O(?:ut [oO]f|OM)|Pytorch"
    rb"|Refused by|S(?:tale|egment|TEPD|ome NCCL|ocket)|T(?:raceback|CPStore|ransport|imed)|Unable|W(?:ARN|atchdog)|Xid"
)
"""A cheap filter that every known line passes. Its first letters are rare in a log of numbers."""

_SHAPE = re.compile(rb"0x[0-9a-f]+|\d{4,}")
_ITERATION = re.compile(rb"iteration\s+\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """The first line in which one speaker reports one cause."""

    cause: Cause
    speaker: Speaker
    text: str
    path: Path
    offset: int
    """Offset of the line in its log, in bytes: the order of the events of one log."""
    peer: str = ""
    """Host name or address of the peer that the line names."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """The events of one log, in order."""

    events: list[LogEvent] = field(default_factory=list)
    iteration: int | None = None
    """The last iteration in the log."""


def scan(path: Path, *, begin: int = 0, end: int | None = None, known: Speaker = UNKNOWN_SPEAKER) -> Scan:
    """Scan a log between two offsets. A missing log has no events. Raises RunDirError for an unreadable log."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = begin if begin <= size else 0  # another log has replaced this log
            end = size if end is None or end > size or end < begin else end
            return _LogScanner(path, known).read(file.fileno(), begin, end)
    except FileNotFoundError:
        return Scan()
    except OSError as error:
        raise cannot_read(path, error) from error


@dataclass(slots=True)
class _LogScanner:
    path: Path
    known: Speaker
    iterations: list[int] = field(default_factory=list)
    """Offsets of at most two iteration lines, the last line first."""
    last: int | None = None
    kinds: dict[bytes, Cause | None] = field(default_factory=dict)
    events: dict[tuple[str, Speaker], LogEvent] = field(default_factory=dict)

    def read(self, handle: int, begin: int, end: int) -> Scan:
        for at, chunk in _chunks_from_end(handle, begin, end):
            if len(self.iterations) < 2:
                self._find_iterations(at, chunk)
            self._find_events(at, chunk)
            if len(self.iterations) == 2 and at <= self.iterations[1]:
                break
        healthy = self.iterations[-1] if self.iterations else begin
        events = sorted(self.events.values(), key=lambda event: event.offset)
        return Scan(events=[event for event in events if event.offset >= healthy], iteration=self.last)

    def _find_iterations(self, at: int, chunk: bytes) -> None:
        end = len(chunk)
        while len(self.iterations) < 2 and (number := chunk.rfind(b"iteration", 0, end)) >= 0:
            end = number
            if not _ITERATION.match(chunk, number):
                continue
            start, stop = _line_around(chunk, number)
            if iteration := parse(chunk[start:stop].decode(errors="replace")):
                self.last = iteration.step if self.last is None else self.last
                self.iterations.append(at + start)
                end = start

    def _find_events(self, at: int, chunk: bytes) -> None:
        """Add the events of a chunk. An earlier event replaces a later event of the same cause and speaker."""
        chunk_events: dict[tuple[str, Speaker], LogEvent] = {}
        position = 0
        while gate := GATE.search(chunk, position):
            start, stop = _line_around(chunk, gate.start())
            position = stop
            line = chunk[start : min(stop, start + MAX_LINE_BYTES)]
            cause = self._classify(line)
            if cause is None:
                continue
            event = self._event(cause, line, at + start)
            chunk_events.setdefault((cause.name, event.speaker), event)
        self.events |= chunk_events

    def _classify(self, line: bytes) -> Cause | None:
        """Classify a line, with a cache: lines of many ranks differ only in large numbers."""
        shape = _SHAPE.sub(b"#", line)
        if shape not in self.kinds:
            if len(self.kinds) > MAX_CACHED_SHAPES:
                self.kinds.clear()
            self.kinds[shape] = classify(split(line)[1].decode(errors="replace"))
        return self.kinds[shape]

    def _event(self, cause: Cause, line: bytes, offset: int) -> LogEvent:
        speaker, text = split(line, self.known)
        decoded = text.decode(errors="replace").rstrip()
        match = cause.pattern.search(decoded)
        groups = {name: value for name, value in (match.groupdict() if match else {}).items() if value}
        if "node" in groups:
            speaker = Speaker(node=groups["node"], rank=_first_rank(groups.get("ranks")))
        if "gpu" in groups:
            speaker = Speaker(node=speaker.node, rank=speaker.rank, gpu=groups["gpu"])
        return LogEvent(
            cause=cause, speaker=speaker, text=decoded, path=self.path, offset=offset, peer=groups.get("peer", "")
        )


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
        yield at, data


def _line_around(chunk: bytes, position: int) -> tuple[int, int]:
    start = chunk.rfind(b"\n", 0, position) + 1
    stop = chunk.find(b"\n", position)
    return start, len(chunk) if stop < 0 else stop
