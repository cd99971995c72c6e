"""Failures recorded by finalize: held trains and excluded nodes, with their causes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Level
from opsctl.base.nodesets import nodeset
from opsctl.base.statements import Remedy, advise, quote, state
from opsctl.state.events import (
    AttemptFinalized,
    Diagnosed,
    Event,
    ExclusionDecided,
    Held,
    HoldReleased,
    Readmitted,
    Submitted,
    cancels_train,
)
from opsctl.watchdogs.context import WatchContext, WatchedTrain

HELD, CONTINUES_WITHOUT = "failures.held", "failures.continues_without"
"""Kinds of findings about a held train, and about a train that lost nodes and goes on without them."""
SAYS = {
    "hold-queued": (HELD, "release"),
    "propose-hold": ("failures.proposes_hold", "hold"),
    "propose-cancel": ("failures.proposes_cancel", "cancel"),
}
"""By the action at the end of an attempt: the kind of finding, and the command with which a person goes on."""
ROLLBACK_CAUSES = frozenset({"checkpoint-unreadable", "checkpoint-missing"})
"""Causes in the catalogue of a checkpoint that cannot be loaded: an earlier one may be."""
_FILE_NAME = re.compile(r"[\w.-]*\d[\w.-]*", re.ASCII)
"""A name with a number, as that of a checkpoint, in lines of the trainer's log."""


class Failures:
    name: ClassVar[str] = "failures"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> WatchedTrain:
        return target

    def judge(self, observation: WatchedTrain, now: datetime) -> list[Finding]:
        return failures(observation.name, observation.events, now)


def failures(train: str, events: Sequence[Event], now: datetime) -> list[Finding]:
    """Return one finding per attempt that led to a hold or an exclusion, from the journal's events. Pure."""
    held, taken = _held(events), _taken(events, now)
    attempts = dict.fromkeys([*taken, *([held.attempt] if held else [])])
    findings = [_of(train, attempt, events, held, taken.get(attempt)) for attempt in attempts]
    well = Finding(key=f"failures/{train}", level=Level.OK, says=state("failures.none", train=train), train=train)
    return findings or [well]


def _held(events: Sequence[Event]) -> AttemptFinalized | None:
    """Return the event that holds the queued tasks, or proposes to; None for a pause or after a person's decision."""
    finalized = [event for event in events if isinstance(event, AttemptFinalized)]
    if not finalized or finalized[-1].action not in SAYS or finalized[-1].outcome == "paused":
        return None
    decisions = Submitted | HoldReleased | (Held if finalized[-1].action == "propose-hold" else HoldReleased)
    later = [event for event in events if event.number > finalized[-1].number]
    is_over = any(isinstance(event, decisions) or cancels_train(event) for event in later)
    return None if is_over else finalized[-1]


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
        says = state(SAYS[held.action][0], train=train, attempt=attempt, outcome=held.outcome, why=str(held.why))
    else:
        kind = "failures.proposes_exclusion" if taken and taken.proposed else "failures.continues_with"
        kind = CONTINUES_WITHOUT if is_excluded else kind
        says = state(kind, train=train, nodes=nodes, attempt=last, why=str(taken.reason) if taken else "")
    actions = [quote(text) for text in (taken.done if taken else ())]
    actions += [state("failures.held_queued", train=train)] if held and holds and held.action != "propose-hold" else []
    quoted = cause.evidence if cause else ()
    evidence = (*quoted, *cause.also) if cause else ()
    name = cause.cause if cause else ""
    advice = cause.advice if cause else ""
    return Finding(
        key=f"failures/{train}/{attempt}",
        level=Level.WARNING if is_excluded and not holds else Level.CRITICAL,
        train=train,
        node=nodes,
        says=says,
        cause=name,
        since=next((event.when for event in (taken, held) if event), None),
        wants_rollback=name in ROLLBACK_CAUSES,
        names=tuple(dict.fromkeys(_FILE_NAME.findall(" ".join(quoted)))),
        evidence=evidence,
        actions=tuple(actions),
        fix=_advise(train, advice, nodes if taken else "", action=held.action if held and holds else ""),
        is_certain=True,
    )


def _advise(train: str, advice: str, nodes: str, *, action: str) -> Remedy:
    if action.startswith("propose"):
        return advise("remedy.to_confirm", ("opsctl", "why", train), ("opsctl", SAYS[action][1], train), text=advice)
    health = [("opsctl", "health", nodes)] if nodes else []
    commands = [("opsctl", "why", train), *health, *([("opsctl", "release", train)] if action else [])]
    kind = "remedy.after_repair" if action else "remedy.after_failure"
    return advise(f"{kind}_of_nodes" if nodes else kind, *commands, text=advice)
