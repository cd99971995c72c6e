"""Failures recorded by finalize: held trains and excluded nodes, with their causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.model import Finding, Level
from opsctl.base.nodesets import nodeset
from opsctl.state.events import (
    AttemptFinalized,
    Diagnosed,
    Event,
    ExclusionDecided,
    HoldReleased,
    Readmitted,
    Submitted,
    cancels_train,
)
from opsctl.watchdogs.context import WatchContext, WatchedTrain


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
    attempts = dict.fromkeys([*taken, *([held.attempt] if held else [])])
    findings = [_of(train, attempt, events, held, taken.get(attempt)) for attempt in attempts]
    well = Finding(key=f"failures/{train}", level=Level.OK, summary=f"{train}: no failure is open", train=train)
    return findings or [well]


def _held(events: Sequence[Event]) -> AttemptFinalized | None:
    """Return the event that holds the queued tasks; None for a pause or after a person's decision."""
    finalized = [event for event in events if isinstance(event, AttemptFinalized)]
    if not finalized or finalized[-1].action != "hold-queued" or finalized[-1].outcome == "paused":
        return None
    is_over = any(_ends_hold(event) for event in events if event.number > finalized[-1].number)
    return None if is_over else finalized[-1]


def _ends_hold(event: Event) -> bool:
    """Whether a person decided: launched, released, or cancelled the train."""
    return isinstance(event, Submitted | HoldReleased) or cancels_train(event)


def _taken(events: Sequence[Event], now: datetime) -> dict[str, ExclusionDecided]:
    """Return the exclusion of every attempt whose nodes are still excluded.

    Nodes that cannot be spared may end several attempts. They are reported under the first attempt.
    """
    exclusions: dict[str, tuple[str, ExclusionDecided]] = {}
    for event in events:
        if isinstance(event, ExclusionDecided) and event.until > now:
            first = exclusions[event.nodes][0] if event.nodes in exclusions else event.attempt
            exclusions[event.nodes] = (first, event)
        elif isinstance(event, Readmitted):
            back = nodeset(event.nodes)
            exclusions = {nodes: value for nodes, value in exclusions.items() if not nodeset(nodes) & back}
    return dict(exclusions.values())


def _of(
    train: str,
    attempt: str,
    events: Sequence[Event],
    held: AttemptFinalized | None,
    taken: ExclusionDecided | None,
) -> Finding:
    last = taken.attempt if taken else attempt
    causes = [event for event in events if isinstance(event, Diagnosed) and event.attempt == last]
    cause = causes[-1] if causes else None
    holds = held is not None and held.attempt == attempt
    nodes = cause.node if cause else ""
    nodes = taken.nodes if taken else nodes
    is_excluded = taken is not None and taken.excluded
    if held is not None and holds:
        summary = f"{train} is held: {attempt} {held.outcome}: {held.why}"
    else:
        goes_on = f"goes on without {nodes}" if is_excluded else f"goes on with {nodes}, too few other nodes"
        summary = f"{train} {goes_on}: {last}: {taken.reason if taken else ''}"
    done = (*(taken.done if taken else ()), *([f"held what is queued of {train}"] if holds else []))
    todo = [f"opsctl why {train}", *([f"opsctl health {nodes}"] if taken else [])]
    todo += [f"opsctl release {train} after the repair"] if holds else []
    advice = cause.advice if cause else ""
    return Finding(
        key=f"failures/{train}/{attempt}",
        level=Level.WARNING if is_excluded and not holds else Level.CRITICAL,
        train=train,
        node=nodes,
        summary=summary,
        evidence=(*cause.evidence, *cause.also) if cause else (),
        done=done,
        remedy=f"{advice} {'; '.join(todo)}".strip(),
        is_certain=True,
    )
