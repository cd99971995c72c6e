"""Failures recorded by finalize: held trains and excluded nodes, with their causes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Severity
from opsctl.base.nodesets import expand_if_list, nodeset
from opsctl.base.statements import Remedy, advise, quote, state
from opsctl.state.events import (
    AttemptFinalized,
    Cancelled,
    Diagnosed,
    Event,
    Excluded,
    ExclusionDecided,
    Held,
    HoldReleased,
    Readmitted,
    RepairAwaited,
    Submitted,
    cancels_train,
)
from opsctl.state.journal import replay
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.held_cause import advise_still, describe_cause, may_blame_node

HELD, STOPPED, CONTINUES_WITHOUT = "failures.held", "failures.stopped", "failures.continues_without"
"""Kinds of findings about a held train, about a train that stopped with an empty queue, and about a train that lost
nodes and continues without them."""
SAYS = {
    "hold-queued": (HELD, "release"),
    "propose-hold": ("failures.proposes_hold", "hold"),
    "propose-cancel": ("failures.proposes_cancel", "cancel"),
}
"""By the action at the end of an attempt: the kind of finding, and the command with which a person goes on."""
PROPOSED = SAYS.keys() - {"hold-queued"}
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
        snapshot = observation.snapshot
        waiting = snapshot.waiting_tasks if snapshot else None
        return failures(observation.run, observation.events, now, waiting=waiting)


def failures(run: RunDir, events: Sequence[Event], now: datetime, *, waiting: int | None = None) -> list[Finding]:
    """Return one finding per attempt that led to a hold or an exclusion, from the journal's events. Pure.

    `waiting` is the number of queued tasks; None if it is unknown. A hold that a person ended is a finding as well, so
    that its alert ends with what the person did.
    """
    train, hold, taken = run.name, find_hold(events), find_exclusions(events, now)
    held = hold.event if hold and hold.end is None else None
    attempts = dict.fromkeys([*taken, *([held.attempt] if held else [])])
    findings = [_of(run, attempt, events, held, taken.get(attempt), waiting=waiting) for attempt in attempts]
    if hold and hold.end and hold.event.attempt not in attempts:
        says = state(f"failures.{_ENDS[type(hold.end)]}", train=train, person=hold.end.actor.partition("@")[0])
        findings.append(
            Finding(key=f"failures/{train}/{hold.event.attempt}", severity=Severity.OK, says=says, train=train)
        )
    well = Finding(key=f"failures/{train}", severity=Severity.OK, says=state("failures.none", train=train), train=train)
    return findings or [well]


@dataclass(frozen=True, slots=True)
class FailureHold:
    """A hold after a failure, or the proposal of one, and the event with which a person ended it."""

    event: AttemptFinalized
    end: Event | None


def find_hold(events: Sequence[Event]) -> FailureHold | None:
    """Return the hold by the last attempt that ended, if its end held the queued tasks; None for a pause."""
    finalized = [event for event in events if isinstance(event, AttemptFinalized)]
    if not finalized or finalized[-1].action not in SAYS or finalized[-1].outcome == "paused":
        return None
    ends: tuple[type[Event], ...] = (Submitted, HoldReleased)
    ends += (Held,) if finalized[-1].action == "propose-hold" else ()
    later = (event for event in events if event.number > finalized[-1].number)
    decisions = (event for event in later if isinstance(event, ends) or cancels_train(event))
    return FailureHold(finalized[-1], next(decisions, None))


_ENDS = {Submitted: "launched", HoldReleased: "released", Held: "held_by_hand", Cancelled: "cancelled"}


def find_exclusions(events: Sequence[Event], now: datetime) -> dict[str, ExclusionDecided]:
    """Return the exclusion, or the proposal of one, of every attempt whose nodes are still in question.

    Nodes that cannot be spared may end several attempts. They are reported under the first attempt.
    """
    exclusions: dict[str, tuple[str, ExclusionDecided]] = {}
    for event in events:
        if isinstance(event, ExclusionDecided) and event.until > now:
            first = exclusions[event.nodes][0] if event.nodes in exclusions else event.attempt
            exclusions[event.nodes] = (first, event)
        elif isinstance(event, Excluded):
            exclusions = {nodes: _by_hand(value, event.nodes) for nodes, value in exclusions.items()}
        elif isinstance(event, Readmitted):
            back = nodeset(event.nodes)
            exclusions = {nodes: value for nodes, value in exclusions.items() if not nodeset(nodes) & back}
    taken: dict[str, ExclusionDecided] = {}
    for attempt, event in exclusions.values():
        # A sick spare node and the end of the attempt are two failures.
        taken[f"{attempt}/{event.nodes}" if attempt in taken else attempt] = event
    return taken


def _by_hand(decided: tuple[str, ExclusionDecided], nodes: str) -> tuple[str, ExclusionDecided]:
    """Return a decision, as done if a person has excluded the nodes of the proposal."""
    first, event = decided
    is_done = event.proposed and nodeset(event.nodes) <= nodeset(nodes)
    return (first, replace(event, excluded=True, proposed=False)) if is_done else decided


def _of(
    run: RunDir,
    attempt: str,
    events: Sequence[Event],
    held: AttemptFinalized | None,
    taken: ExclusionDecided | None,
    *,
    waiting: int | None,
) -> Finding:
    train = run.name
    last = taken.attempt if taken else attempt
    causes = [event for event in events if isinstance(event, Diagnosed) and event.attempt == last]
    cause = causes[-1] if causes else None
    holds = held is not None and held.attempt == attempt
    nodes = cause.node if cause and may_blame_node(cause) else ""
    nodes = taken.nodes if taken else nodes
    is_excluded = taken is not None and taken.excluded
    if held is not None and holds:
        kind = STOPPED if waiting == 0 and held.action == "hold-queued" else SAYS[held.action][0]
        why = describe_cause(replay(list(events))) or f"{attempt} {held.outcome}: {held.exit_why or held.why}"
        says = state(
            kind, train=train, cause=why, waiting=waiting, attempt=attempt, outcome=held.outcome, why=str(held.why)
        )
    else:
        kind = "failures.proposes_exclusion" if taken and taken.proposed else "failures.continues_with"
        kind = CONTINUES_WITHOUT if is_excluded else kind
        says = state(kind, train=train, nodes=nodes, attempt=last, why=_explain(taken.reason) if taken else "")
    actions = [quote(text) for text in (taken.done if taken else ())]
    is_held = held is not None and holds and held.action != "propose-hold" and waiting != 0
    actions += [state("failures.held_queued", train=train)] if is_held else []
    actions += [
        state("failures.nodes_wait", nodes=event.nodes, until=event.until, gpu_hours=round(event.gpu_hours, 1))
        for event in events
        if isinstance(event, RepairAwaited) and event.attempt == attempt
    ]
    quoted = cause.evidence if cause else ()
    evidence = (*quoted, *cause.also) if cause else ()
    name = cause.cause if cause else ""
    out = expand_if_list(nodes) if is_excluded else ()
    advice = advise_still(cause, out) if cause else ""
    return Finding(
        key=f"failures/{train}/{attempt}",
        severity=Severity.WARNING if is_excluded and not holds else Severity.CRITICAL,
        train=train,
        node=nodes,
        says=says,
        cause=name,
        since=next((event.when for event in (taken, held) if event), None),
        wants_rollback=name in ROLLBACK_CAUSES,
        names=tuple(dict.fromkeys(_FILE_NAME.findall(" ".join(quoted)))),
        evidence=evidence,
        actions=tuple(actions),
        fix=_advise(run, advice, nodes, action=held.action if held and holds else "", waiting=waiting),
        is_certain=True,
    )


def _explain(reason: Reason) -> str:
    """Return the diagnosed cause and its rank, without its kind and node, which the sentence does not need."""
    rank = "" if reason.rank is None else f", rank {reason.rank}"
    is_diagnosis = reason.kind == ReasonKind.DIAGNOSIS and reason.text
    return f"{reason.text}{rank}" if is_diagnosis else str(reason)


def _advise(run: RunDir, advice: str, nodes: str, *, action: str, waiting: int | None) -> Remedy:
    """Return the commands that work now: a train with an empty queue has nothing to release."""
    train = run.name
    if action in PROPOSED:
        return advise("remedy.to_confirm", ("opsctl", "why", train), ("opsctl", SAYS[action][1], train), text=advice)
    health = [("opsctl", "health", nodes)] if nodes else []
    resume = ("opsctl", "launch", str(run.config)) if waiting == 0 else ("opsctl", "release", train)
    commands = [("opsctl", "why", train), *health, *([resume] if action else [])]
    kind = "remedy.after_repair" if action else "remedy.after_failure"
    return advise(f"{kind}_of_nodes" if nodes else kind, *commands, text=advice)
