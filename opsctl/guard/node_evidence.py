"""Evidence about nodes from earlier times: the node history around the end of an attempt, added to a diagnosis, and
whether a failure follows a node through the attempts of a train, from the journal.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile

from opsctl.base.nodesets import expand_if_list, fold
from opsctl.base.units import format_duration
from opsctl.diagnosis.blame import Proof, find_rule
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.nodes.health.node_state import CheckSeverity, Health
from opsctl.nodes.history import Incident, NodeHistory, NodeRecord
from opsctl.state.events import AttemptFinalized, AttemptStarted, Diagnosed, Event

MAX_LINES = 6
"""Nodes, or GPUs, that a summary describes."""
MAX_EVIDENCE_CHARS = 120
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_ANY_NODES = frozenset({CauseKind.UNKNOWN, CauseKind.HANG, CauseKind.NODE, CauseKind.GPU, CauseKind.NETWORK})
"""Causes for which any node of the attempt may be to blame, if the logs name no node."""
MESSAGES = frozenset({Proof.MESSAGE, Proof.SLURM})


def add_node_history(
    diagnosis: Diagnosis, history: NodeHistory, allocated: str, *, at: datetime, days: float
) -> Diagnosis:
    """Add the history of the blamed node; if the logs name no node, of every node of the attempt (`allocated`).

    Adds lines for people, and changes neither cause nor suspects. `days` limits how old history may be.
    """
    nodes = expand_if_list(allocated)
    names = (diagnosis.node, diagnosis.node.partition(".")[0])
    blamed = next((name for name in names if name and name in nodes), "")
    lines: list[str] = []
    try:
        if blamed:
            lines = summarize_node(history.load(blamed), history.cards(), at=at, days=days)
        elif not diagnosis.node and diagnosis.kind in _ANY_NODES:
            lines = summarize_nodes([history.load(node) for node in nodes], at=at)
    except (OSError, ValueError) as error:  # the cause stands without the history
        lines = [f"the history of the nodes cannot be read: {error}"]
    return replace(diagnosis, also=(*diagnosis.also, *lines))


def summarize_node(
    record: NodeRecord, cards: Mapping[str, Sequence[Incident]], *, at: datetime, days: float
) -> list[str]:
    """Describe the evidence against the suspect node: its incidents, and those of its GPUs under other node names.

    `at` is the end of the attempt; incidents of the `days` before count.
    """
    end, node = at.timestamp(), record.node
    since = end - days * _DAY_S
    lines = []
    before = [incident for incident in record.incidents if incident.at <= end and incident.last >= since]
    if before:
        lines.append(f"{node} has had {_count_findings(before)} in the {days:g} days before")
    hangs = sum(since <= hang < end for hang in record.hangs.values())
    if hangs:
        lines.append(f"{node} had the odd ranks in {hangs} hang{'s' * (hangs != 1)} in the {days:g} days before")
    standing = _describe_standing(record, end)
    if standing:
        lines.append(standing)
    later = [incident for incident in record.incidents if incident.at > end]
    if later:
        first = min(later, key=lambda incident: incident.at)
        lines.append(f"{node}, {format_duration(first.at - end)} after: {_render(first)}")
    return lines + _describe_cards(record, cards, since)


def summarize_nodes(records: Sequence[NodeRecord], *, at: datetime) -> list[str]:
    """Describe the health of an attempt's nodes at its end, for an attempt whose logs name no cause."""
    end = at.timestamp()
    bad: dict[str, str] = {}
    healthy: list[str] = []
    unchecked: list[str] = []
    for record in records:
        if standing := _describe_standing(record, end):
            bad[record.node] = standing
        elif record.at is None:
            unchecked.append(record.node)
        elif _was_healthy(record, end):
            healthy.append(record.node)
    lines = list(bad.values())[:MAX_LINES]
    if len(bad) > MAX_LINES:
        lines.append(f"also faulty or degraded: {fold(list(bad)[MAX_LINES:])}")
    if healthy:
        lines.append(f"healthy at the last check before: {fold(healthy)}")
    if unchecked:
        lines.append(f"no health check is stored of {fold(unchecked)}")
    return lines


def _describe_standing(record: NodeRecord, end: float) -> str:
    """Describe the worst fault that the node still had at `end`; return an empty string for none.

    A fault that the node has since passed a health check without does not count, nor does a fault more than a day
    older than `end`, unless no later health check exists.
    """
    incidents = [
        incident for incident in record.incidents if incident.at <= end and not _is_cleared(incident, record, end)
    ]
    if not incidents:
        return ""
    newest = max(min(incident.last, end) for incident in incidents)
    if end - newest > _DAY_S and record.at != newest:
        return ""
    latest = [incident for incident in incidents if newest - min(incident.last, end) < _HOUR_S]
    worst = next((incident for incident in latest if incident.severity == CheckSeverity.FAULTY.value), latest[0])
    if worst.last >= end:
        since = f"since {_format_time(worst.at)}"
    else:
        since = f"at the check {format_duration(end - worst.last)} before"
    return f"{record.node} was already {worst.severity}, {since}: {_render(worst)}"


def _is_cleared(incident: Incident, record: NodeRecord, end: float) -> bool:
    """Return whether the node passed a check, or was put back into service, between the incident and `end`."""
    return any(incident.last < passed <= end for passed in (*record.passed, record.cleared or 0.0))


def _was_healthy(record: NodeRecord, end: float) -> bool:
    """Return whether a health check before `end` found the node healthy."""
    is_last_healthy = record.at is not None and record.at <= end and record.health == Health.HEALTHY.value
    return is_last_healthy or any(passed <= end for passed in record.passed)


def _describe_cards(record: NodeRecord, cards: Mapping[str, Sequence[Incident]], since: float) -> list[str]:
    """Describe the incidents that the node's GPUs had in other nodes."""
    lines = []
    for card in record.cards:
        elsewhere = [
            incident for incident in cards.get(card.uuid, ()) if incident.node != record.node and incident.last >= since
        ]
        if elsewhere:
            newest = max(elsewhere, key=lambda incident: incident.last)
            text = f"{card.uuid} of {record.node} has had {_count_findings(elsewhere)} in node {newest.node}"
            lines.append(f"{text}, the last on {_format_time(newest.last)}: {_render(newest)}")
    return lines[:MAX_LINES]


def _count_findings(incidents: Sequence[Incident]) -> str:
    """Return `3 findings (xid 2, ecc 1)`."""
    by_check = Counter(incident.check for incident in incidents).most_common()
    counts = ", ".join(f"{check} {count}" for check, count in by_check)
    return f"{len(incidents)} finding{'s' * (len(incidents) != 1)} ({counts})"


def _render(incident: Incident) -> str:
    gpu = f"{incident.gpu} " if incident.gpu else ""
    return f"{incident.check}: {gpu}{incident.evidence[:MAX_EVIDENCE_CHARS]}"


def _format_time(seconds: float) -> str:
    """Show a Unix time in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """The cause of one attempt, and the nodes that the logs named."""

    attempt: str
    cause: str
    nodes: tuple[str, ...]
    kind: CauseKind = CauseKind.UNKNOWN


def read_blamed(events: Sequence[Event]) -> list[Blamed]:
    """Return the journalled causes, one an attempt."""
    blamed: dict[str, Blamed] = {}
    for event in events:
        if isinstance(event, Diagnosed):
            known = event.cause_kind in set(CauseKind)
            blamed[event.attempt] = Blamed(
                attempt=event.attempt,
                cause=event.cause,
                nodes=event.accused or event.suspects,
                kind=CauseKind(event.cause_kind) if known else CauseKind.UNKNOWN,
            )
    return list(blamed.values())


def list_allocations(events: Sequence[Event]) -> dict[str, frozenset[str]]:
    """Return the nodes of every finalized attempt."""
    finalized = {event.attempt for event in events if isinstance(event, AttemptFinalized)}
    allocations: dict[str, frozenset[str]] = {}
    for event in events:
        if isinstance(event, AttemptStarted) and event.attempt in finalized:
            allocations[event.attempt] = frozenset(expand_if_list(event.nodes))
    return allocations


def count_repeats(
    earlier: Sequence[Blamed], allocations: Mapping[str, frozenset[str]], own: Blamed, node: str, kind: CauseKind
) -> int:
    """Return through how many attempts, `own` included, the failure followed `node`; 1 if it did not follow.

    Messages count back to the last one that named another node. A suspicion follows a node only if the same cause named
    no other node, and if an attempt without the node ended by another cause, or by none.
    """
    others = [blamed for blamed in earlier if blamed.attempt != own.attempt]
    if find_rule(kind, own.cause).proof in MESSAGES:
        named = (blamed for blamed in others if blamed.nodes)
        messages = [blamed for blamed in named if find_rule(blamed.kind, blamed.cause).proof in MESSAGES]
        return 1 + len(list(takewhile(lambda blamed: blamed.nodes == (node,), reversed(messages))))
    same = [blamed for blamed in others if blamed.cause == own.cause]
    if any(blamed.nodes != (node,) for blamed in same):
        return 1
    failed = {blamed.attempt for blamed in same}
    elsewhere = [nodes for attempt, nodes in allocations.items() if attempt not in failed and attempt != own.attempt]
    without_node = any(nodes and node not in nodes for nodes in elsewhere)
    return 1 + len(same) if without_node else 1
