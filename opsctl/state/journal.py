"""The journal of a train: append-only events of a closed set of kinds, and the history that they add up to.

Every host and user appends to a file of its own, one write() an event, so that no lock is needed. The number of an
event is one more than the highest number that the writer could read. Readers order by number: clocks of nodes differ.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from opsctl.base.errors import RunDirError, cannot_read, cannot_write
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.system import user_name
from opsctl.state.events import FIELDS, Event, EventKind, parse_event
from opsctl.state.files import append_line, list_names, open_regular, parse_json
from opsctl.state.run_dir import Attempt, RunDir

__all__ = ["FIELDS", "Array", "Event", "EventKind", "Journal", "TrainHistory", "actor", "replay"]

log = logging.getLogger(__name__)

MAX_JOURNAL_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_EVENTS = 200_000
"""A train of a year has some ten thousand events."""
MAX_FILES = 10_000
"""One for each host and user."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one train."""

    run: RunDir
    clock: Clock

    def append(self, kind: EventKind, **data: Any) -> Event:
        """Append an event. Raises RunDirError if the event cannot be written; then the journal is unchanged."""
        event = Event(
            number=1 + max((event.number for event in self.events()), default=0),
            at=self.clock.now().isoformat(timespec="milliseconds"),
            actor=f"{actor()}@{hostname()}:{os.getpid()}",
            kind=kind,
            data=data,
        )
        path = self.run.journal / f"{hostname()}-{os.geteuid()}.jsonl"
        try:
            append_line(path, _to_line(event))
        except OSError as error:
            raise cannot_write(path, error) from error
        log.debug("%s: %s %s", self.run.name, kind, json.dumps(data, default=str))  # ASCII: data may hold surrogates
        return event

    def events(self) -> list[Event]:
        """Return the readable events, in order. Truncated lines and lines of a newer version are skipped.

        Raises RunDirError for a journal that cannot be read, or that is larger than any train's.
        """
        events: list[Event] = []
        for path in self._files():
            try:
                for event in _read(path):
                    events.append(event)
                    if len(events) > MAX_EVENTS:
                        raise RunDirError(f"{self.run.journal}: more than {MAX_EVENTS} events")
            except OSError as error:
                raise cannot_read(path, error) from error
        return sorted(events, key=lambda event: (event.number, event.at))

    def _files(self) -> list[Path]:
        try:
            names = list_names(self.run.journal, max_entries=MAX_FILES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read(self.run.journal, error) from error
        return [self.run.journal / name for name in sorted(names) if name.endswith(".jsonl")]


def _to_line(event: Event) -> bytes:
    record = {"n": event.number, "at": event.at, "actor": event.actor, "kind": event.kind, **event.data}
    # A lone surrogate, which a team member's JSON may contain, is written as an escape.
    return (json.dumps(record, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace")


def _read(path: Path) -> Iterator[Event]:
    """Yield the events of one file. Raises OSError, RunDirError."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_JOURNAL_BYTES:
            raise RunDirError(f"{path}: larger than {MAX_JOURNAL_BYTES >> 20} MiB, which no train's journal is")
        while line := file.readline(MAX_LINE_BYTES):
            try:
                yield parse_event(parse_json(line))
            except ValueError:  # truncated, of a newer version, or not an event
                continue


def actor() -> str:
    """Return the name of the effective user. $USER is not reliable."""
    return user_name(os.geteuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One submission of the train that Slurm has accepted."""

    id: str
    nonce: str
    tasks: int
    submitted: datetime


@dataclass(slots=True)
class TrainHistory:
    """The state of a train according to its events."""

    arrays: dict[str, Array] = field(default_factory=dict)
    """Accepted submissions by array id, in order."""
    pending: dict[str, Event] = field(default_factory=dict)
    """Started submissions whose result is unknown, by nonce."""
    started: dict[str, datetime] = field(default_factory=dict)
    """Start of every attempt, in order."""
    finalized: dict[str, Event] = field(default_factory=dict)
    """The finalizing event of every attempt."""
    diagnosed: dict[str, Event] = field(default_factory=dict)
    """The diagnosis of every attempt that has one."""
    held: Event | None = None
    """The hold in force, as far as known."""
    cancelling: Event | None = None
    """The started cancellation whose result is unknown."""

    def attempts_of(self, array: str) -> list[str]:
        """Return the attempts of an array, in order of their start."""
        return [attempt for attempt in self.started if Attempt(Path(attempt)).array == array]


def replay(events: list[Event]) -> TrainHistory:
    """Return the history after `events`. Kinds without a step change nothing."""
    history = TrainHistory()
    for event in events:
        step = _STEPS.get(event.kind)
        if step:
            step(history, event)
    return history


def _submitted(history: TrainHistory, event: Event) -> None:
    array, nonce = str(event.data["array"]), str(event.data["nonce"])
    submitting = history.pending.pop(nonce, None)
    known = history.arrays.get(array)
    tasks = known.tasks if known and known.nonce == nonce else 0
    if submitting:
        tasks = int(submitting.data["tasks"])
    history.arrays[array] = Array(id=array, nonce=nonce, tasks=tasks, submitted=event.when)
    history.held = history.cancelling = None


def _started(history: TrainHistory, event: Event) -> None:
    """Record the start. An attempt of an unknown array proves that an interrupted submission was accepted."""
    attempt = str(event.data["attempt"])
    array = Attempt(Path(attempt)).array
    if array not in history.arrays and len(history.pending) == 1:
        nonce, submitting = history.pending.popitem()
        tasks = int(submitting.data["tasks"])
        history.arrays[array] = Array(id=array, nonce=nonce, tasks=tasks, submitted=submitting.when)
    history.started[attempt] = event.when
    history.finalized.pop(attempt, None)  # a killed controller reuses ids


def _set_held(history: TrainHistory, event: Event) -> None:
    history.held = event


def _set_cancelling(history: TrainHistory, event: Event) -> None:
    history.cancelling = event


def _clear_cancelling(history: TrainHistory, _: Event) -> None:
    history.cancelling = None


def _clear_held(history: TrainHistory, _: Event) -> None:
    history.held = None


_STEPS: dict[EventKind, Callable[[TrainHistory, Event], object]] = {
    EventKind.SUBMITTING: lambda history, event: history.pending.update({event.data["nonce"]: event}),
    EventKind.SUBMITTED: _submitted,
    EventKind.SUBMIT_REFUSED: lambda history, event: history.pending.pop(event.data["nonce"], None),
    EventKind.ARRAY_LOST: lambda history, event: history.arrays.pop(event.data["array"], None),
    EventKind.ATTEMPT_STARTED: _started,
    EventKind.DIAGNOSED: lambda history, event: history.diagnosed.update({event.data["attempt"]: event}),
    EventKind.ATTEMPT_FINALIZED: lambda history, event: history.finalized.update({event.data["attempt"]: event}),
    EventKind.HELD: _set_held,
    EventKind.CANCELLING: _set_cancelling,
    EventKind.CANCELLED: _clear_cancelling,
    EventKind.RELEASED: _clear_held,
}
