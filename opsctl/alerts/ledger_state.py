"""The ledger's data as stored on disk."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from pydantic import TypeAdapter

from opsctl.base.findings import Finding, Severity, Transition
from opsctl.base.statements import QUOTE, Statement
from opsctl.state.files import parse_json
from opsctl.state.records import HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    by: str
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """No alert is sent for keys that match `pattern`. A severity that changed meanwhile is sent after the silence."""

    since: datetime | None = None
    """Begin of a silence entered in advance."""

    pattern: str
    until: datetime
    reason: str
    by: str
    at: datetime

    def covers(self, key: str, now: datetime) -> bool:
        return (self.since or now) <= now < self.until and fnmatchcase(key, self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One key: the severity that people were notified of, and the observations since."""

    key: str
    severity: Severity = Severity.OK
    """The severity that people were notified of."""
    since: datetime
    """Start of `severity`."""
    finding: Finding | None = None
    """The latest finding at `severity`."""
    latest_severity: Severity
    """The severity at the last check, notified or not."""
    checked_at: datetime
    unconfirmed_cycles: int = 0
    """Consecutive checks that were worse than `severity`, or better. An unknown result does not count."""
    unconfirmed_since: datetime | None = None
    unconfirmed_is_worse: bool = False
    incident: str = ""
    """The id that all messages from the first alert to RESOLVED share."""
    opened: datetime | None = None
    notified: int = 0
    """Number of messages of this incident."""
    notified_at: datetime | None = None
    repeats: int = 0
    has_improved: bool = False
    """Whether the last message reported an improvement."""
    flaps: int = 0
    """How often the problem came back shortly after an improvement."""
    acknowledged: Acknowledgement | None = None
    escalated: int = 0
    """Number of escalation steps taken at this severity."""
    changed_in: int = 0
    """Revision of the ledger in which `severity` changed."""
    follows: str = ""
    """Key of the alert that reports the cause of this one, whose own messages are withheld."""

    @property
    def is_open(self) -> bool:
        return self.severity is not Severity.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTransition:
    """A recorded transition, with the further facts that its message needs."""

    transition: Transition
    opened: datetime
    was: Statement | None = None
    """What was found at the previous severity."""
    to: tuple[str, ...] = ()
    """The channels of an escalation, which nobody else gets; empty for the channels of the routes."""

    @property
    def incident(self) -> str:
        return self.transition.id.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The transitions of one watch cycle. A batch stays in the ledger until its messages are in the outbox."""

    id: str
    number: int
    changes: tuple[AlertTransition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """The channels that were notified of an incident, and the id of the first message on each channel."""

    at: datetime
    roots: dict[str, str]
    severities: dict[str, Severity] = field(default_factory=dict)
    """The severity in the last message to each channel."""


@dataclass(slots=True, kw_only=True)
class LedgerState:
    revision: int = 0
    """Number of changes. Of the site's ledger and the spare one, the one with more changes counts."""
    is_separate: bool = False
    """A spare ledger that began while the site's ledger could not be read."""
    number: int = 0
    """Number of the last batch. Messages are delivered in this order, whatever the clocks of the hosts say."""
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
    """Parse a ledger file. Raises ValueError."""
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise ValueError("the ledger is not a JSON object")
    for part in _list_parts(fields):
        rename_severity(part)
        if isinstance(part, dict):
            _quote_texts(part)
    return _STATE.validate_python(fields)


def _list_parts(fields: dict[str, Any]) -> Iterator[object]:
    """Yield what may hold a severity: ledger entries, threads, transitions and findings."""
    tables = (fields.get(name) for name in ("entries", "threads"))
    rows = list(chain.from_iterable(table.values() for table in tables if isinstance(table, dict)))
    batches = fields.get("pending")
    for batch in batches if isinstance(batches, list) else []:
        rows += batch["changes"] if isinstance(batch, dict) and isinstance(batch.get("changes"), list) else []
    for row in rows:
        transition = row.get("transition") if isinstance(row, dict) else None
        for part in (row, transition):
            yield from (part, part.get("finding")) if isinstance(part, dict) else ()


def rename_severity(fields: object) -> None:
    """Give the severities in the fields of a file from before 0.1.0 their present names."""
    for old, name in (("level", "severity"), ("latest_level", "latest_severity"), ("levels", "severities")):
        if isinstance(fields, dict) and old in fields:
            fields[name] = fields.pop(old)


def _quote_texts(part: dict[str, Any]) -> None:
    """Turn the texts of a file from before findings had values into quotes."""
    if isinstance(part.get("was"), str):
        part["was"] = _quote(part["was"])
    if "says" not in part and isinstance(part.get("summary"), str):
        fix, rollback = part.pop("remedy", ""), part.pop("rollback", "")
        part |= {"says": _quote(part.pop("summary")), "actions": [_quote(line) for line in part.pop("done", ())]}
        part |= {"fix": {"advice": _quote(fix)} if fix else {}, "roll_back": _quote(rollback) if rollback else None}


def _quote(text: str) -> dict[str, Any]:
    return {"kind": QUOTE, "facts": {"text": text}}


def dump(state: LedgerState) -> str:
    fields = {**HEADER, **_STATE.dump_python(state, mode="json")}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"
