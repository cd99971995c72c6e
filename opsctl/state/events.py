"""The events of a train's journal: a closed set of kinds, the fields of each kind and the type of each field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

MAX_NUMBER = 10**15
YEARS = range(2000, 2200)
"""Times outside cannot be shown in every time zone."""
_ATTEMPT = re.compile(r"\d{1,18}(?:_\d{1,18})?\.\d{1,9}", re.ASCII)
_ID = re.compile(r"\d{1,18}", re.ASCII)


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
    ALLOWED = "allowed"
    ROLLED_BACK = "rolled-back"
    ROLLBACK_UNDONE = "rollback-undone"
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
    EventKind.ALLOWED: frozenset({"check", "what", "origin"}),
    EventKind.ROLLED_BACK: frozenset({"rollback", "step", "checkpoint", "aside"}),
    EventKind.ROLLBACK_UNDONE: frozenset({"rollback", "step"}),
    EventKind.REQUEST_DONE: frozenset({"verb", "by"}),
    EventKind.REQUEST_REFUSED: frozenset({"verb", "by", "why"}),
}
"""The exact fields of every kind."""
OPTIONAL: dict[EventKind, frozenset[str]] = {
    EventKind.EXCLUDED: frozenset({"until"}),
    EventKind.DIAGNOSED: frozenset({"accused", "acquitted"}),
    EventKind.ROLLED_BACK: frozenset({"why"}),
}
"""Optional fields: the end of an exclusion, if any; the nodes that the logs name, and why some are not excluded; the
reason of a rollback, if given."""


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


def parse_event(record: object) -> Event:
    """Return the event of one line of a journal. Raises ValueError unless every field has the type of its name."""
    if not isinstance(record, dict):
        raise ValueError("not an event")
    head = {"n", "at", "actor", "kind"}
    number, at, actor = record.get("n"), record.get("at"), record.get("actor")
    if type(number) is not int or not 0 <= number <= MAX_NUMBER or not isinstance(actor, str):
        raise ValueError("an event without a number or an actor")
    data = {key: value for key, value in record.items() if key not in head}
    event = Event(number=number, at=_time(at), actor=actor, kind=EventKind(_text(record.get("kind"))), data=data)
    for name, value in data.items():
        _TYPES.get(name, _text)(value)
    return event


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("not a text")


def _texts(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("not a list of texts")


def _ids(value: object) -> None:
    _texts(value)
    assert isinstance(value, list)
    if not all(map(_ID.fullmatch, value)):
        raise ValueError("not a list of job ids")


def _time(value: object) -> str:
    at = datetime.fromisoformat(_text(value))
    if at.utcoffset() is None or at.year not in YEARS:
        raise ValueError("not a time with a time zone")
    return _text(value)


def _count(value: object) -> None:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError("not a count")


def _rank(value: object) -> None:
    if value is not None:
        _count(value)


def _truth(value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")


def _match(pattern: re.Pattern[str]) -> Callable[[object], None]:
    def check(value: object) -> None:
        if not pattern.fullmatch(_text(value)):
            raise ValueError(f"does not match {pattern.pattern}")

    return check


_TYPES: Mapping[str, Callable[[Any], object]] = {
    "tasks": _count,
    "rollback": _count,
    "aside": _texts,
    "rank": _rank,
    "excluded": _truth,
    "until": _time,
    "array": _match(_ID),
    "attempt": _match(_ATTEMPT),
    "jobs": _ids,
    "suspects": _texts,
    "accused": _texts,
    "acquitted": _texts,
    "evidence": _texts,
    "also": _texts,
    "done": _texts,
}
"""The type of each field; a field that is not listed is a text."""
