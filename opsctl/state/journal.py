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
from enum import StrEnum
from pathlib import Path
from typing import Any

from opsctl.errors import cannot_write
from opsctl.host.system import hostname, user_name
from opsctl.ports import Clock
from opsctl.state.run_dir import Attempt, RunDir

log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """The kinds of events."""

    CREATED = "created"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    SUBMIT_REFUSED = "submit-refused"
    ARRAY_LOST = "array-lost"
    ATTEMPT_STARTED = "attempt-started"
    STOP_STEP = "stop-step"
    DIAGNOSED = "diagnosed"
    QUARANTINED = "quarantined"
    ATTEMPT_FINALIZED = "attempt-finalized"
    HOOK = "hook"
    HELD = "held"
    RELEASED = "released"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    EXCLUDED = "excluded"
    READMITTED = "readmitted"
    ARMED = "armed"
    DISARMED = "disarmed"
    EDITED = "edited"
    REQUEST_DONE = "request-done"
    REQUEST_REFUSED = "request-refused"


FIELDS: dict[EventKind, frozenset[str]] = {
    EventKind.CREATED: frozenset({"config"}),
    EventKind.SUBMITTING: frozenset({"nonce", "tasks", "after"}),
    EventKind.SUBMITTED: frozenset({"nonce", "array"}),
    EventKind.SUBMIT_REFUSED: frozenset({"nonce", "why"}),
    EventKind.ARRAY_LOST: frozenset({"array"}),
    EventKind.ATTEMPT_STARTED: frozenset({"attempt", "nodes"}),
    EventKind.STOP_STEP: frozenset({"attempt", "step", "why"}),
    EventKind.DIAGNOSED: frozenset(
        {"attempt", "class", "cause", "says", "node", "rank", "suspects", "evidence", "also", "advice"}
    ),
    EventKind.QUARANTINED: frozenset({"attempt", "nodes", "until", "excluded", "why", "done"}),
    EventKind.ATTEMPT_FINALIZED: frozenset({"attempt", "outcome", "action", "why"}),
    EventKind.HOOK: frozenset({"hook", "attempt", "subject"}),
    EventKind.HELD: frozenset({"jobs", "why"}),
    EventKind.RELEASED: frozenset({"jobs"}),
    EventKind.CANCELLING: frozenset({"job", "why"}),
    EventKind.CANCELLED: frozenset({"job", "why"}),
    EventKind.EXCLUDED: frozenset({"jobs", "nodes"}),
    EventKind.READMITTED: frozenset({"jobs", "nodes"}),
    EventKind.ARMED: frozenset({"switch", "by", "why"}),
    EventKind.DISARMED: frozenset({"switch", "by"}),
    EventKind.EDITED: frozenset({"revision"}),
    EventKind.REQUEST_DONE: frozenset({"verb", "by"}),
    EventKind.REQUEST_REFUSED: frozenset({"verb", "by", "why"}),
}
"""The exact fields of every kind."""
OPTIONAL: dict[EventKind, frozenset[str]] = {EventKind.EXCLUDED: frozenset({"until"})}
"""Optional fields: the end of an exclusion, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Raises ValueError for fields that its kind does not have."""

    number: int
    at: str
    """UTC, ISO 8601, by the writer's clock."""
    actor: str
    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.data) - OPTIONAL.get(self.kind, frozenset()) != FIELDS[self.kind]:
            raise ValueError(f"{self.kind}: carries {sorted(self.data)}, needs {sorted(FIELDS[self.kind])}")

    @property
    def when(self) -> datetime:
        """The time of the event, by the writer's clock."""
        return datetime.fromisoformat(self.at)


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
            is_new = not path.exists()
            append_line(path, _to_line(event))
            if is_new:
                path.chmod(0o644)  # like all files of a run directory, independent of the umask
        except OSError as error:
            raise cannot_write(path, error) from error
        log.debug("%s: %s %s", self.run.name, kind, json.dumps(data, default=str))  # ASCII: data may hold surrogates
        return event

    def events(self) -> list[Event]:
        """Return the readable events, in order. Truncated lines and lines of a newer version are skipped."""
        events: list[Event] = []
        for path in sorted(self.run.journal.glob("*.jsonl")):
            events += _read(path)
        return sorted(events, key=lambda event: (event.number, event.at))


def _to_line(event: Event) -> bytes:
    record = {"n": event.number, "at": event.at, "actor": event.actor, "kind": event.kind, **event.data}
    # A lone surrogate, which a team member's JSON may contain, is written as an escape.
    return (json.dumps(record, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace")


def append_line(path: Path, line: bytes) -> None:
    """Append one line and fsync. Raises OSError; then a part of the line may have been written."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # After a truncated line, start a new line.
        if os.fstat(handle).st_size and _last_byte(path) != b"\n":
            line = b"\n" + line
        written = os.write(handle, line)
        os.fsync(handle)
        if written != len(line):
            raise OSError(28, "No space left on device")
    finally:
        os.close(handle)


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _read(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
            head = {key: record.pop(name) for key, name in (("number", "n"), ("at", "at"), ("actor", "actor"))}
            yield Event(**head, kind=EventKind(record.pop("kind")), data=record)
        except (ValueError, KeyError, TypeError, AttributeError):
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
