"""What the ledger remembers, as it lies on the disk."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

from pydantic import TypeAdapter

from opsctl.model import Finding, Level, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    by: str
    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Nobody is told of what fits `pattern`. Afterwards they are told how it is then, if they do not know."""

    pattern: str
    until: datetime
    why: str
    by: str
    at: datetime

    def covers(self, key: str, now: datetime) -> bool:
        return now < self.until and fnmatchcase(key, self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One key: what people were told of it, and what was seen since."""

    key: str
    level: Level = Level.OK
    """What people were told."""
    since: datetime
    """Since when they know."""
    finding: Finding | None = None
    """The last that was found at `level`."""
    seen: Level
    """What the last look found, be it told or not."""
    checked_at: datetime
    other_looks: int = 0
    """So many looks in a row found it worse than `level`, or better. One that found nothing out does not count."""
    other_since: datetime | None = None
    other_is_worse: bool = False
    incident: str = ""
    """What all messages from the first bad one to the good one have in common."""
    opened: datetime | None = None
    notified: int = 0
    """So many messages of this incident."""
    notified_at: datetime | None = None
    repeats: int = 0
    has_improved: bool = False
    """Whether the last that was told was that it is better."""
    flaps: int = 0
    """So often it came back soon after it was better."""
    acknowledged: Acknowledgement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTransition:
    """A transition that was written down, and what a message needs to say beside it."""

    transition: Transition
    opened: datetime
    was: str
    """The summary of what was found at the level before."""

    @property
    def incident(self) -> str:
        return self.transition.id.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one look changed. It is kept until it lies in the outbox."""

    id: str
    number: int
    noted: tuple[AlertTransition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Which channels were told of an incident, and by which message first."""

    at: datetime
    roots: dict[str, str]


@dataclass(slots=True, kw_only=True)
class LedgerState:
    number: int = 0
    """Of the last batch. What was noted later is delivered later, whatever the clocks of the hosts say."""
    entries: dict[str, LedgerEntry] = field(default_factory=dict)
    pending: list[Batch] = field(default_factory=list)
    silences: list[Silence] = field(default_factory=list)
    threads: dict[str, Thread] = field(default_factory=dict)

    def in_force(self, now: datetime) -> list[Silence]:
        return [silence for silence in self.silences if now < silence.until]

    def silenced(self, key: str, now: datetime) -> Silence | None:
        return next((silence for silence in self.silences if silence.covers(key, now)), None)


_STATE = TypeAdapter(LedgerState)


def parse(text: str | bytes) -> LedgerState:
    """Raises ValueError."""
    return _STATE.validate_json(text)


def dump(state: LedgerState) -> str:
    return json.dumps(_STATE.dump_python(state, mode="json"), ensure_ascii=False, separators=(",", ":")) + "\n"


SEVERITY = {Level.OK: 0, Level.UNKNOWN: 1, Level.WARNING: 2, Level.CRITICAL: 3}
