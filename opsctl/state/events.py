"""The events of a train's journal: one class for each kind, and the codec of their lines.

A line names its format and the version of opsctl that wrote it. Lines without a format come from before there were
reasons and formats; `upgrade` reads them. A kind that this version does not know becomes an UnknownEvent.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeGuard, TypeVar, dataclass_transform

from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.records import FORMAT, decode, encode, to_time

Count = Annotated[int, range(10**15 + 1)]
AttemptName = Annotated[str, re.compile(r"\d{1,18}(?:_\d{1,18})?\.\d{1,9}", re.ASCII)]
JobId = Annotated[str, re.compile(r"\d{1,18}", re.ASCII)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. The journal fills in the first four fields when it appends the event."""

    number: Count = 0
    at: str = ""
    """UTC, ISO 8601, by the writer's clock."""
    actor: str = ""
    opsctl: str = ""
    """The version that wrote the event; empty in journals from before events named it."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields of a newer version."""

    @property
    def when(self) -> datetime:
        """The time of the event, by the writer's clock."""
        return datetime.fromisoformat(self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a newer version, whose fields are in `extra`."""

    kind: str


KINDS: dict[str, type[Event]] = {}
"""The class of each kind, by its name in the journal."""
_NAMES: dict[type[Event], str] = {}
E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def event(kind: str) -> Callable[[type[E]], type[E]]:
    """Return the decorator of the dataclass of one kind of events, with its name in the journal."""

    def add(cls: type[E]) -> type[E]:
        KINDS[kind] = made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _NAMES[made] = kind
        return made

    return add


@event("created")
class Created(Event):
    config: str


@event("submitting")
class Submitting(Event):
    nonce: str
    tasks: Count
    after: str


@event("submitted")
class Submitted(Event):
    nonce: str
    array: JobId


@event("submit-refused")
class SubmitRefused(Event):
    nonce: str
    why: str


@event("array-lost")
class ArrayLost(Event):
    array: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent(Event):
    """An event of one attempt."""

    attempt: AttemptName


@dataclass(frozen=True, slots=True)
class EndCount:
    """How many attempts ended in the same way."""

    outcome: str
    cause: str
    """As diagnosed; empty without a diagnosis."""
    attempts: Count


@event("attempts-left-out")
class AttemptsLeftOut(Event):
    """Old finalized attempts, in order, whose events a snapshot has left out."""

    attempts: tuple[AttemptName, ...]
    ends: tuple[EndCount, ...]


@event("attempt-started")
class AttemptStarted(AttemptEvent):
    nodes: str
    spares: int = 0  # how many more nodes of the allocation wait to replace one of these


@event("nodes-lost")
class NodesLost(AttemptEvent):
    """Nodes of an attempt that did not answer a step of its job."""

    nodes: str


@event("restart-decided")
class RestartDecided(AttemptEvent):
    """The next start of the task uses the same allocation: why, on which nodes, and which nodes wait as spares."""

    nodes: str
    spares: str
    why: str


@event("repair-awaited")
class RepairAwaited(AttemptEvent):
    """The nodes of a held train wait for a person until the given time."""

    nodes: str
    gpu_hours: float
    """What the whole wait costs."""
    until: datetime


@event("stop-step")
class StopStep(AttemptEvent):
    """A step of a stop: a signal, the end of the ranks."""

    step: str
    why: str


@event("diagnosed")
class Diagnosed(AttemptEvent):
    cause_kind: str
    cause: str
    says: str
    node: str
    rank: Count | None
    suspects: tuple[str, ...]
    """Nodes that the evidence convicts."""
    evidence: tuple[str, ...]
    also: tuple[str, ...]
    advice: str
    accused: tuple[str, ...] = ()
    """Nodes that the logs name."""
    acquitted: tuple[str, ...] = ()
    """Why some of them are not excluded."""
    signature: str = ""
    """What tells the fault from others of the same cause."""


@event("exclusion-decided")
class ExclusionDecided(AttemptEvent):
    """What was done about the suspect nodes of an attempt."""

    nodes: str
    until: datetime
    excluded: bool
    """Whether the nodes are excluded. If not, `done` says why."""
    reason: Reason
    done: tuple[str, ...]
    proposed: bool = False
    """Whether the exclusion waits for a person."""
    to_drain: str = ""
    """Nodes whose drain waits for a person."""


@event("attempt-finalized")
class AttemptFinalized(AttemptEvent):
    outcome: str
    action: str
    why: str
    exit_why: str = ""
    """The part of `why` that says how the attempt ended, without its diagnosis and its action."""
    reason: Reason | None = None
    """Why the queued tasks are held, if this attempt is not the only cause."""


@event("hook")
class HookStarted(AttemptEvent):
    hook: str
    subject: str


@event("held")
class Held(Event):
    jobs: tuple[JobId, ...]
    reason: Reason


@event("released")
class HoldReleased(Event):
    jobs: tuple[JobId, ...]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation(Event):
    """The beginning or the end of a cancellation."""

    jobs: tuple[JobId, ...]
    """The arrays."""
    task: Count | None = None
    """The only task that is cancelled; None for the arrays."""
    reason: Reason

    @property
    def job(self) -> str:
        """The cancelled task in Slurm's notation, `12_3`; empty for arrays."""
        return "" if self.task is None else f"{self.jobs[0]}_{self.task}"


@event("cancelling")
class Cancelling(Cancellation):
    """The result in Slurm is unknown yet."""


@event("cancelled")
class Cancelled(Cancellation):
    """Slurm has accepted the cancellation."""


def cancels_train(event: Event) -> TypeGuard[Cancelled]:
    """Whether the event cancels the whole train: neither one task of it, nor the second array of one submission."""
    return isinstance(event, Cancelled) and event.task is None and event.reason.kind != ReasonKind.DUPLICATE


@event("excluded")
class Excluded(Event):
    """Nodes were excluded for the queued arrays."""

    jobs: tuple[JobId, ...]
    nodes: str
    until: datetime | None = None
    """None for an exclusion by a person, which has no end."""


@event("readmitted")
class Readmitted(Event):
    jobs: tuple[JobId, ...]
    nodes: str


@event("disarmed")
class SwitchDisarmed(Event):
    switch: str
    by: str
    why: str = ""


@event("armed")
class SwitchArmed(Event):
    switch: str
    by: str
    why: str


@event("edited")
class Edited(Event):
    revision: str
    why: str = ""


RESTARTS = (Submitted, HoldReleased, Edited)
"""Events by which a person restarts the train. Failures before such an event count no more."""


@event("allowed")
class Allowed(Event):
    """An error of preflight that a person allowed."""

    check: str
    what: str
    origin: str
    """--allow or [preflight] allow."""


@event("rollback-undone")
class RollbackUndone(Event):
    rollback: Count
    step: Count


@event("rolled-back")
class RolledBack(Event):
    rollback: Count
    step: Count
    checkpoint: str
    aside: tuple[str, ...]
    why: str = ""


@event("request-done")
class RequestDone(Event):
    verb: str
    by: str


@event("request-refused")
class RequestRefused(Event):
    verb: str
    by: str
    why: str


def to_line(event: Event) -> bytes:
    """Return the line of an event."""
    record = encode(event, is_sparse=True)
    kind = event.kind if isinstance(event, UnknownEvent) else _NAMES[type(event)]
    head = {
        "n": event.number,
        "at": event.at,
        "actor": event.actor,
        "kind": kind,
        "format": FORMAT,
        "opsctl": event.opsctl,
    }
    fields = {key: value for key, value in record.items() if key not in {"number", *head}}
    # A lone surrogate, which a team member's JSON may contain, is written as an escape.
    return (json.dumps({**head, **fields}, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def parse_event(record: object) -> Event:
    """Return the event of one line of a journal. Raises ValueError unless every field has the type of its name."""
    if not isinstance(record, dict) or not {"n", "at", "actor", "kind"} <= record.keys():
        raise ValueError("not an event")
    to_time(record["at"])
    kind, line_format = record["kind"], record.get("format", 0)
    fields = {key: value for key, value in record.items() if key not in {"n", "kind", "format"}}
    fields["number"] = record["n"]
    if not isinstance(kind, str):
        raise ValueError("an event without a kind")
    if not line_format:
        try:
            kind = upgrade(kind, fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{kind}: {error}") from error
    if cls := KINDS.get(kind):
        try:
            return decode(cls, fields)
        except ValueError:
            if not isinstance(line_format, int) or line_format <= FORMAT:
                raise
    return decode(UnknownEvent, {**fields, "kind": kind})


def upgrade(kind: str, fields: dict[str, Any]) -> str:
    """Give a line without a format the fields of format 1; return its kind. Reasons, jobs and steps were texts.

    Raises KeyError and ValueError for a line that was never valid.
    """
    if kind == "quarantined":
        kind = "exclusion-decided"
    if kind == "diagnosed":
        fields["cause_kind"] = fields.pop("class", "")
    if kind in {"held", "cancelling", "cancelled", "exclusion-decided"}:
        why = fields.pop("why", None)
        # Only these words told a dropped duplicate from the end of the train.
        is_duplicate = kind == "cancelled" and why == "the same submission arrived twice"
        fields["reason"] = {"kind": "duplicate"} if is_duplicate else {"text": why}
    if kind in {"cancelling", "cancelled"}:
        jobs, _, task = str(fields.pop("job", "")).partition("_")
        fields["jobs"] = jobs.split(",")
        fields |= {"task": int(task)} if task else {}
    if kind in {"rolled-back", "rollback-undone"}:
        fields["step"] = int(fields["step"])
    return kind
