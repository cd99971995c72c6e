"""Read the steps of any trainer from the lines of its log, in order. Pure: no files, no clock.

The formats of a log are learnt from its first lines. Values on lines of their own belong to the step in the line before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.telemetry.progress.log_events import GATE, ProgressEvent, ProgressEventKind, parse_event
from opsctl.telemetry.progress.log_formats import MAX_SEGMENT_CHARS, LogFormat, Values, load_formats, to_iteration

LEARNT_LINES = 50
"""Step lines after which only the formats that occurred are tried."""
MAX_UNKNOWN_LINES = 20_000
"""Candidate lines without a step after which all formats are tried again."""
MAX_SEGMENTS = 5000
"""States of a progress bar in one line; only the last ones are read."""

_COLOUR = re.compile(r"\x1b\[[\d;]{0,16}m")
_PREFIX = re.compile(r"(?:\[(?:[\w.-]{1,80}:\d{1,9}|default\d{1,6}|rank\d{1,6}|\d{1,6})\]:\s?|\d{1,6}:\s(?=\S))")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFacts:
    """What one line states: values by the fields of Iteration, and events."""

    values: Values
    events: tuple[ProgressEvent, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    """The steps that the line completes."""


@dataclass(slots=True)
class StepReader:
    """Reads lines in the order of the log. Feed every line, then call `rest` once."""

    formats: Sequence[LogFormat] = field(default_factory=load_formats)
    total: int | None = None
    """The announced number of steps: a progress bar of another length is no training."""
    _current: Values = field(default_factory=dict)
    _known: list[LogFormat] = field(default_factory=list)
    _matched: int = 0
    _unknown: int = 0

    def read(self, line: bytes) -> LineFacts:
        """Return what a line states, and the steps that this line shows to be complete."""
        values: Values = {}
        events, iterations = [], []
        for segment in split_segments(line):
            if event := parse_event(segment) if GATE.search(segment) else None:
                events.append(event)
                if event.kind is ProgressEventKind.ANNOUNCED:
                    self.total = event.total
            stated = self._parse(segment)
            if stated is None:
                continue
            values |= stated
            if completed := self._take(stated):
                iterations.append(completed)
        return LineFacts(values=values, events=tuple(events), iterations=tuple(iterations))

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
        formats = self._known if self._matched >= LEARNT_LINES else self.formats
        for log_format in formats:
            values = log_format.parse(text)
            if values is None or self._is_other_bar(values):
                continue
            self._learn(log_format)
            return values
        self._forget()
        return None

    def _is_other_bar(self, values: Values) -> bool:
        return self.total is not None and values.get("last", self.total) != self.total

    def _learn(self, log_format: LogFormat) -> None:
        self._matched += 1
        self._unknown = 0
        if log_format not in self._known:
            self._known = [known for known in self.formats if known in self._known or known is log_format]

    def _forget(self) -> None:
        if self._matched >= LEARNT_LINES:
            self._unknown += 1
            if self._unknown > MAX_UNKNOWN_LINES:
                self._matched, self._unknown, self._known = 0, 0, []


def split_segments(line: bytes) -> Iterator[str]:
    """Yield the states of a line with carriage returns, without prefix and colours, each cut to a bound."""
    parts = line.split(b"\r")[-MAX_SEGMENTS:] if b"\r" in line else [line]
    for part in parts:
        if not part or part.isspace():
            continue
        text = part[: MAX_SEGMENT_CHARS * 4].decode(errors="replace")[:MAX_SEGMENT_CHARS]
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        while match := _PREFIX.match(text):
            text = text[match.end() :]
        yield text


