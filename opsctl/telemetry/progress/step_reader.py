"""Read the steps of any trainer from the lines of its log, in order. Pure: no files, no clock.

The formats of a log are learnt from its first lines. Values on lines of their own belong to the step before them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from opsctl.telemetry.logs.log_lines import is_own_line
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_events import ProgressEvent, ProgressEventKind, load_words, parse_event
from opsctl.telemetry.progress.log_formats import (
    FIELDS,
    MAX_SEGMENT_CHARS,
    WHOLE,
    LineFormat,
    Values,
    formats_for,
    load_columns,
    load_formats,
    parse_number,
    to_iteration,
)

LEARNT_LINES = 50
"""Step lines after which only the formats that occurred are tried."""
MAX_UNKNOWN_LINES = 20_000
"""Candidate lines without a step after which all formats are tried again."""
MAX_OTHER_LINES = 500
"""Step lines of other ranks after which the rank that was followed is given up."""
MAX_SEGMENTS = 5000
"""States of a progress bar in one line; only the last ones are read."""

TABLE_WORDS = (b"step,", b",step", b"iteration,", b",iteration")
"""A text with a table holds one of them. The rows of a table hold no words."""

_COLOUR = re.compile(r"\x1b\[[\d;]{0,16}m")
_PREFIX = re.compile(r"(?:\[(?:[\w.-]{1,80}:\d{1,9}|default\d{1,6}|rank\d{1,6}|\d{1,6})\]:\s?|\d{1,6}:\s(?=\S))")
_HEADER = re.compile(r"[A-Za-z][\w/. ()-]{0,60}(?:,[A-Za-z][\w/. ()-]{0,60}){1,40}")
_ROW = re.compile(r"[-+.\deEnaif]{0,24}(?:,[-+.\deEnaif]{0,24}){1,40}")


@dataclass(slots=True)
class CsvLines:
    """A table within a log: the columns of the last header."""

    columns: tuple[str, ...] = ()
    """The field of every column, empty for a column that says nothing of progress."""

    def parse(self, text: str) -> Values | None:
        """Return the values of a row with a step, None for any other line. A header begins another table."""
        if "," not in text:
            return None
        if _HEADER.fullmatch(text):
            fields = tuple(load_columns().get(name, "") for name in text.split(","))
            self.columns = fields if "step" in fields else ()
            return None
        if not self.columns or not _ROW.fullmatch(text):
            return None
        cells = text.split(",")
        return self._row(cells) if len(cells) == len(self.columns) else None

    def _row(self, cells: list[str]) -> Values | None:
        values: Values = {}
        for column, cell in zip(self.columns, cells, strict=True):
            number = parse_number(cell) if column and cell else None
            if number is not None and column not in values:
                name = FIELDS[column][0]
                values[name] = int(number) if name in WHOLE and number >= 0 else number
        # The rows of evaluations have a step and none of these values.
        return values if values.keys() - {"step"} and "step" in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFacts:
    """What one line states: values by the fields of Iteration, and events."""

    values: Values = field(default_factory=dict)
    events: tuple[ProgressEvent, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    """The steps that the line shows to be complete."""


NOTHING = LineFacts()


@cache
def _find_words(formats: tuple[LineFormat, ...]) -> tuple[bytes, ...]:
    """Return texts of which every line with a step or an event holds one; empty if a format has no words.

    No text holds another.
    """
    if not all(line_format.words for line_format in formats):
        return ()
    words = {*load_words()}.union(*(line_format.words for line_format in formats))
    return tuple(word.encode() for word in words if not any(other in word for other in words - {word}))


@dataclass(slots=True)
class StepReader:
    """Reads lines in the order of the log. Feed every line, then call `rest` once."""

    formats: Sequence[LineFormat] = field(default_factory=load_formats)
    total: int | None = None
    """The announced number of steps: a progress bar of another length is no training."""
    writer: str | None = None
    """The prefix of the rank whose steps count. Every rank may log every step."""
    skipped_lines: int = 0
    """Step lines of other ranks."""
    known: tuple[LineFormat, ...] = ()
    """The formats that have occurred."""
    _words: tuple[bytes, ...] = field(init=False)
    _current: Values = field(default_factory=dict)
    _csv: CsvLines = field(default_factory=CsvLines)
    _matched: int = 0
    _unknown: int = 0
    _others: int = 0

    def __post_init__(self) -> None:
        self.formats = tuple(self.formats)
        self._words = _find_words(self.formats)

    def read(self, line: bytes, *, is_candidate: bool = False) -> LineFacts:
        """Return what a line states, and the steps that this line shows to be complete.

        `is_candidate`: the line comes from `find_lines`.
        """
        if not (is_candidate or self._csv.columns or self._has_word(line)):
            return NOTHING
        if is_own_line(line):
            self._take_own_line(line)
            return NOTHING
        values: Values = {}
        events, iterations = [], []
        for prefix, segment in split_segments(line):
            if event := parse_event(segment):
                events.append(event)
                if event.kind is ProgressEventKind.ANNOUNCED:
                    self.total = event.total
            stated = self._parse(segment)
            if stated is None or not self._is_followed(prefix):
                continue
            values |= stated
            if completed := self._take(stated):
                iterations.append(completed)
        return LineFacts(values=values, events=tuple(events), iterations=tuple(iterations))

    def _take_own_line(self, line: bytes) -> None:
        """Forget the rank that was followed if opsctl's guard begins an attempt. What opsctl says is no sign."""
        event = parse_event(line.decode(errors="replace"))
        if event and event.kind is ProgressEventKind.STARTED:
            self.writer, self._others = None, 0

    def _has_word(self, line: bytes) -> bool:
        for word in self._words:
            if word in line:
                return True
        return not self._words

    def find_lines(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield offset and text of the lines that may state something. Reads a noisy log fast."""
        if not self._words or self._csv.columns or any(word in data for word in TABLE_WORDS):
            yield from _all_lines(data)
            return
        hits = {word: at for word in self._words if (at := data.find(word)) >= 0}
        while hits:
            at = min(hits.values())
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield begin, data[begin:end]
            hits = {word: at if at >= end else data.find(word, end) for word, at in hits.items()}
            hits = {word: at for word, at in hits.items() if at >= 0}

    def rest(self) -> Iteration | None:
        """Return the last step, and forget it."""
        current, self._current = self._current, {}
        return to_iteration(current)

    def _take(self, stated: Values) -> Iteration | None:
        """Add the values of a line; return the step before if the line begins another step."""
        step = stated.get("step")
        if step is None or step == self._current.get("step"):
            if self._current:
                self._current |= stated
            return None
        completed, self._current = self._current, dict(stated)
        return to_iteration(completed)

    def _parse(self, text: str) -> Values | None:
        if (row := self._csv.parse(text)) is not None:
            return row
        for line_format in self.known if self._matched >= LEARNT_LINES else self.formats:
            values = line_format.parse(text)
            if values is None or (self.total is not None and values.get("last", self.total) != self.total):
                continue
            self._learn(line_format)
            return values
        self._forget()
        return None

    def _is_followed(self, prefix: str) -> bool:
        """Whether the steps of this rank count: those of the first rank that logs steps, until it falls silent."""
        if self.writer is None or prefix == self.writer:
            self.writer, self._others = prefix, 0
            return True
        self._others += 1
        self.skipped_lines += 1
        if self._others > MAX_OTHER_LINES:
            self.writer, self._others = prefix, 0
            return True
        return False

    def _learn(self, line_format: LineFormat) -> None:
        self._matched += 1
        self._unknown = 0
        if line_format not in self.known:
            self.known = tuple(known for known in self.formats if known in self.known or known is line_format)

    def _forget(self) -> None:
        if self._matched >= LEARNT_LINES:
            self._unknown += 1
            if self._unknown > MAX_UNKNOWN_LINES:
                self._matched, self._unknown, self.known = 0, 0, ()


def split_segments(line: bytes) -> Iterator[tuple[str, str]]:
    """Yield prefix and text of the states of a line with carriage returns, without colours, cut to a bound."""
    prefix = ""
    for part in line.split(b"\r")[-MAX_SEGMENTS:] if b"\r" in line else [line]:
        if not part or part.isspace():
            continue
        text = part[: MAX_SEGMENT_CHARS * 4].decode(errors="replace")[:MAX_SEGMENT_CHARS]
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        begin = 0
        while match := _PREFIX.match(text, begin):
            begin = match.end()
        prefix = text[:begin] or prefix
        yield prefix, text[begin:]


def _all_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in data.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def iterate_steps(data: bytes, begin: int, pattern: str) -> Iterator[tuple[int, Iteration]]:
    """Yield the steps in the lines of `data`, which begins at `begin`, with the offsets of their lines."""
    reader = StepReader(formats_for(pattern))
    at = begin
    for offset, line in reader.find_lines(data):
        facts = reader.read(line, is_candidate=True)
        for iteration in facts.iterations:
            yield at, iteration
        if facts.values.get("step") is not None:
            at = begin + offset
    if (last := reader.rest()) is not None:
        yield at, last
