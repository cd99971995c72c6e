"""What was known of nodes when something happened there: what `why` says beside what the logs tell. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from opsctl.nodes.health.node_state import Health, Severity
from opsctl.nodes.history import Incident, NodeRecord
from opsctl.nodesets import fold
from opsctl.units import format_duration

SHOWN = 6
"""Nodes, or cards, of which so many are told."""
HOUR = 3600.0


def summarize_node(
    record: NodeRecord, cards: Mapping[str, Sequence[Incident]], *, at: datetime, days: float
) -> list[str]:
    """What speaks against the node to which the first cause points, its cards under other names too."""
    stamp = at.timestamp()
    before = [
        incident for incident in record.incidents if incident.at <= stamp and incident.last >= stamp - days * 24 * HOUR
    ]
    lines = []
    if before:
        lines.append(f"{record.node} has had {_findings(before)} in the {days:g} days before")
    if hangs := sum(stamp - days * 24 * HOUR <= hang < stamp for hang in record.hangs.values()):
        lines.append(
            f"{record.node} has been the odd one in {hangs} hang{'s' * (hangs != 1)} in the {days:g} days before"
        )
    lines += _standing(record, stamp)
    if later := min(
        (incident for incident in record.incidents if incident.at > stamp),
        key=lambda incident: incident.at,
        default=None,
    ):
        lines.append(f"{record.node}, {format_duration(later.at - stamp)} after: {_words(later)}")
    return [*lines, *_elsewhere(record, cards, stamp - days * 24 * HOUR)]


def summarize_nodes(records: Sequence[NodeRecord], *, at: datetime) -> list[str]:
    """What was known of an attempt's nodes, where no log names a cause."""
    stamp = at.timestamp()
    bad = {record.node: found for record in records if (found := list(_standing(record, stamp)))}
    unseen = [record.node for record in records if record.at is None]
    well = [record for record in records if record.node not in {*bad, *unseen} and _was_well(record, stamp)]
    lines = [line for each in list(bad.values())[:SHOWN] for line in each]
    if len(bad) > SHOWN:
        lines.append(f"so were {fold(list(bad)[SHOWN:])}")
    if well:
        lines.append(f"health had found nothing wrong with {fold(record.node for record in well)} then")
    if unseen:
        lines.append(f"nobody had looked at {fold(unseen)}; opsctl health {fold(unseen)}")
    return lines


def _standing(record: NodeRecord, stamp: float) -> Iterator[str]:
    """The worst that the last look before, or those before and after, had found; nothing of what it had passed since,
    or of what is old while others have looked."""
    incidents = [
        incident
        for incident in record.incidents
        if incident.at <= stamp
        and not any(incident.last < look <= stamp for look in (*record.passed, record.cleared or 0.0))
    ]
    newest = max((min(incident.last, stamp) for incident in incidents), default=0.0)
    if not incidents or not (stamp - newest <= 24 * HOUR or record.at == newest):
        return
    last = [incident for incident in incidents if newest - min(incident.last, stamp) < HOUR]
    worst = next((incident for incident in last if incident.severity == Severity.FAULTY.value), last[0])
    lasts = worst.last >= stamp
    when = f"since {_day(worst.at)}" if lasts else f"when looked at {format_duration(stamp - worst.last)} before"
    yield f"{record.node} was already {worst.severity}, {when}: {_words(worst)}"


def _was_well(record: NodeRecord, stamp: float) -> bool:
    """A look before says so."""
    last = record.at is not None and record.at <= stamp and record.health == Health.HEALTHY.value
    return last or any(look <= stamp for look in record.passed)


def _elsewhere(record: NodeRecord, cards: Mapping[str, Sequence[Incident]], since: float) -> list[str]:
    lines = []
    for card in record.cards:
        there = [
            incident for incident in cards.get(card.uuid, ()) if incident.node != record.node and incident.last >= since
        ]
        if there:
            last = max(there, key=lambda incident: incident.last)
            text = f"{card.uuid} of {record.node} has had {_findings(there)} as a card of {last.node}"
            lines.append(f"{text}, the last on {_day(last.last)}: {_words(last)}")
    return lines[:SHOWN]


def _findings(incidents: Sequence[Incident]) -> str:
    """`3 findings (xid 2, ecc 1)`"""
    each = ", ".join(f"{check} {count}" for check, count in Counter(one.check for one in incidents).most_common())
    return f"{len(incidents)} finding{'s' * (len(incidents) != 1)} ({each})"


def _words(incident: Incident) -> str:
    gpu = f"{incident.gpu} " if incident.gpu else ""
    return f"{incident.check}: {gpu}{incident.evidence[:120]}"


def _day(stamp: float) -> str:
    return f"{datetime.fromtimestamp(stamp, UTC):%Y-%m-%d %H:%M}"
