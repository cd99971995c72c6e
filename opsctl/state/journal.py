"""What happened to a train: append-only events in a closed vocabulary, and what they add up to.

Each host and user appends to a file of its own, one write() an event, so that no lock is needed to lose nothing. An
event's number is one more than any that its writer could see: readers order by it, for clocks of nodes differ.
"""

from __future__ import annotations

import json
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


class EventKind(StrEnum):
    """Everything that can be journalled."""

    CREATED = "created"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    SUBMIT_REFUSED = "submit-refused"
    ARRAY_LOST = "array-lost"
    ATTEMPT_STARTED = "attempt-started"
    DIAGNOSED = "diagnosed"
    QUARANTINED = "quarantined"
    ATTEMPT_FINALIZED = "attempt-finalized"
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
    EventKind.DIAGNOSED: frozenset(
        {"attempt", "class", "cause", "says", "node", "rank", "suspects", "evidence", "also", "advice"}
    ),
    EventKind.QUARANTINED: frozenset({"attempt", "nodes", "until", "excluded", "why", "done"}),
    EventKind.ATTEMPT_FINALIZED: frozenset({"attempt", "outcome", "action", "why"}),
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
"""What each kind carries: no more, no less."""
OPTIONAL: dict[EventKind, frozenset[str]] = {EventKind.EXCLUDED: frozenset({"until"})}
"""What some carry besides: until when nodes are excluded, where that has an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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
        return datetime.fromisoformat(self.at)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one train."""

    run: RunDir
    clock: Clock

    def append(self, kind: EventKind, **data: Any) -> Event:
        """Add one event. Raises RunDirError where it cannot be written; then nothing was added."""
        event = Event(
            number=1 + max((each.number for each in self.events()), default=0),
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
                path.chmod(0o644)  # as all files of a run directory, whatever the umask
        except OSError as error:
            raise cannot_write(path, error) from error
        return event

    def events(self) -> list[Event]:
        """All that is readable, in order. A line that was cut off, or is of a later version, is passed over."""
        files = sorted(self.run.journal.glob("*.jsonl"))
        found = [event for path in files for event in _read(path)]
        return sorted(found, key=lambda event: (event.number, event.at))


def _to_line(event: Event) -> bytes:
    record = {"n": event.number, "at": event.at, "actor": event.actor, "kind": event.kind, **event.data}
    # Half a character, which a team-mate's JSON can hold, is written as JSON escapes it.
    return (json.dumps(record, ensure_ascii=False, default=str) + "\n").encode(errors="backslashreplace")


def append_line(path: Path, line: bytes) -> None:
    """Add one whole line, on the disk when this returns. Raises OSError; then less than a line may have been added."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # After a torn tail the next event starts on a line of its own.
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
    """Who we are, as Slurm and the file system have it, for $USER may say anything."""
    return user_name(os.geteuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One submission of the train that Slurm has taken."""

    id: str
    nonce: str
    tasks: int
    submitted: datetime


@dataclass(slots=True)
class TrainHistory:
    """What the events of a train add up to."""

    arrays: dict[str, Array] = field(default_factory=dict)
    """By id, in order of submission."""
    pending: dict[str, Event] = field(default_factory=dict)
    """Submissions that were begun and of which it is not known how they ended, by nonce."""
    started: dict[str, datetime] = field(default_factory=dict)
    """When each attempt started, in order."""
    finalized: dict[str, Event] = field(default_factory=dict)
    """How each attempt was finalized."""
    diagnosed: dict[str, Event] = field(default_factory=dict)
    """What was found out about the end of each, where somebody wanted to know."""
    held: Event | None = None
    """The hold that is in force, as far as opsctl knows."""
    cancelling: Event | None = None
    """The cancellation that was begun and of which it is not known whether it was done."""

    def attempts_of(self, array: str) -> list[str]:
        return [attempt for attempt in self.started if Attempt(Path(attempt)).array == array]


def replay(events: list[Event]) -> TrainHistory:
    """What `events` add up to. Events of a kind that changes nothing here are passed over."""
    history = TrainHistory()
    for event in events:
        if step := _STEPS.get(event.kind):
            step(history, event)
    return history


def _submitted(history: TrainHistory, event: Event) -> None:
    array, nonce = str(event.data["array"]), str(event.data["nonce"])
    begun, known = history.pending.pop(nonce, None), history.arrays.get(array)
    tasks = known.tasks if known and known.nonce == nonce else 0
    if begun:
        tasks = int(begun.data["tasks"])
    history.arrays[array] = Array(id=array, nonce=nonce, tasks=tasks, submitted=event.when)
    history.held = history.cancelling = None


def _started(history: TrainHistory, event: Event) -> None:
    """An attempt of an array that nobody knows is what became of a submission that was cut off."""
    attempt = str(event.data["attempt"])
    array = Attempt(Path(attempt)).array
    if array not in history.arrays and len(history.pending) == 1:
        nonce, begun = history.pending.popitem()
        tasks = int(begun.data["tasks"])
        history.arrays[array] = Array(id=array, nonce=nonce, tasks=tasks, submitted=begun.when)
    history.started[attempt] = event.when
    history.finalized.pop(attempt, None)  # a controller that was killed uses ids again


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
