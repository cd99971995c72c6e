"""Failures recorded by finalize: held trains and excluded nodes, with their causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from opsctl.base.model import Finding, Level
from opsctl.base.nodesets import nodeset
from opsctl.state.journal import Event, EventKind
from opsctl.watchdogs.context import WatchContext, WatchedTrain

OVER = frozenset({EventKind.SUBMITTED, EventKind.RELEASED})
"""Events with which a person ends a hold. Cancelling the train ends a hold as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEvents:
    train: str
    events: tuple[Event, ...]


class Failures:
    name: ClassVar[str] = "failures"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> TrainEvents:
        return TrainEvents(train=target.name, events=target.events)

    def judge(self, observation: TrainEvents, now: datetime) -> list[Finding]:
        return failures(observation.train, observation.events, now)


def failures(train: str, events: Sequence[Event], now: datetime) -> list[Finding]:
    """Return one finding per attempt that led to a hold or an exclusion, from the journal's events. Pure."""
    held, taken = _held(events), _taken(events, now)
    attempts = dict.fromkeys([*taken, *([str(held.data["attempt"])] if held else [])])
    findings = [_of(train, attempt, events, held, taken.get(attempt)) for attempt in attempts]
    well = Finding(key=f"failures/{train}", level=Level.OK, summary=f"{train}: no failure is open", train=train)
    return findings or [well]


def _held(events: Sequence[Event]) -> Event | None:
    """Return the event that holds the queued tasks; None for a pause or after a person's decision."""
    finalized = [event for event in events if event.kind is EventKind.ATTEMPT_FINALIZED]
    if not finalized or finalized[-1].data["action"] != "hold-queued" or finalized[-1].data["outcome"] == "paused":
        return None
    is_over = any(_ends_hold(event) for event in events if event.number > finalized[-1].number)
    return None if is_over else finalized[-1]


def _ends_hold(event: Event) -> bool:
    return event.kind in OVER or (event.kind is EventKind.CANCELLED and "_" not in str(event.data["job"]))


def _taken(events: Sequence[Event], now: datetime) -> dict[str, Event]:
    """Return the quarantine event of every attempt whose nodes are still excluded.

    Nodes that cannot be spared may end several attempts. They are reported under the first attempt.
    """
    quarantines: dict[str, tuple[str, Event]] = {}
    for event in events:
        nodes = str(event.data.get("nodes", ""))
        if event.kind is EventKind.QUARANTINED and datetime.fromisoformat(event.data["until"]) > now:
            first = quarantines[nodes][0] if nodes in quarantines else str(event.data["attempt"])
            quarantines[nodes] = (first, event)
        elif event.kind is EventKind.READMITTED:
            quarantines = {nodes: value for nodes, value in quarantines.items() if not _share_nodes(value[1], event)}
    return dict(quarantines.values())


def _share_nodes(event: Event, other: Event) -> bool:
    return bool(nodeset(str(event.data["nodes"])) & nodeset(str(other.data["nodes"])))


def _of(train: str, attempt: str, events: Sequence[Event], held: Event | None, taken: Event | None) -> Finding:
    last = str(taken.data["attempt"]) if taken else attempt
    causes = [e.data for e in events if e.kind is EventKind.DIAGNOSED and e.data["attempt"] == last]
    cause: dict[str, Any] = causes[-1] if causes else {}
    holds = held is not None and held.data["attempt"] == attempt
    nodes = str(taken.data["nodes"]) if taken else str(cause.get("node", ""))
    is_excluded = taken is not None and bool(taken.data["excluded"])
    if held is not None and holds:
        summary = f"{train} is held: {attempt} {held.data['outcome']}: {held.data['why']}"
    else:
        goes_on = f"goes on without {nodes}" if is_excluded else f"goes on with {nodes}, too few other nodes"
        summary = f"{train} {goes_on}: {last}: {taken.data['why'] if taken else ''}"
    done = (*(taken.data["done"] if taken else ()), *([f"held what is queued of {train}"] if holds else []))
    todo = [f"opsctl why {train}", *([f"opsctl health {nodes}"] if taken else [])]
    todo += [f"opsctl release {train} after the repair"] if holds else []
    return Finding(
        key=f"failures/{train}/{attempt}",
        level=Level.WARNING if is_excluded and not holds else Level.CRITICAL,
        train=train,
        node=nodes,
        summary=summary,
        evidence=tuple(map(str, (*cause.get("evidence", ()), *cause.get("also", ())))),
        done=tuple(map(str, done)),
        remedy=f"{cause.get('advice', '')} {'; '.join(todo)}".strip(),
        is_certain=True,
    )
