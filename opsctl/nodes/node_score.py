"""How suspect a node is by its history: its incidents and drains of the last days, and its flaky GPUs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from opsctl.nodes.health.node_state import CheckSeverity
from opsctl.nodes.history import Incident, NodeRecord, count_recent

DRAIN_POINTS = 2.0
HANG_POINTS = 2.0
INCIDENT_POINTS = {CheckSeverity.FAULTY.value: 3.0, CheckSeverity.DEGRADED.value: 1.0}


def score(incidents: Iterable[Incident], drained: Iterable[float], now: datetime, days: float) -> float:
    """Return the flaky-node score: 3 a faulty incident of the last `days`, 1 a degraded incident, 2 a drain."""
    since = (now - timedelta(days=days)).timestamp()
    recent = [incident for incident in incidents if incident.last >= since]
    points = sum(INCIDENT_POINTS.get(incident.severity, 0.0) for incident in recent)
    return points + DRAIN_POINTS * count_recent(drained, now, days)


def node_score(record: NodeRecord, cards: Mapping[str, Sequence[Incident]], now: datetime, days: float) -> float:
    """Return a node's flaky-node score: its incidents, and those of its GPUs under other node names.

    Each hang in which the node's ranks differed adds 2, from the second hang on: the program may have caused the first.
    """
    incidents = list(record.incidents)
    for card in record.cards:
        incidents += [incident for incident in cards.get(card.uuid, ()) if incident.node != record.node]
    hangs = count_recent(record.hangs.values(), now, days)
    return score(incidents, record.drained, now, days) + (HANG_POINTS * hangs if hangs > 1 else 0.0)


def find_flaky_gpus(
    cards: Mapping[str, Sequence[Incident]], now: datetime, *, days: float, limit: float
) -> dict[str, str]:
    """Return a summary by UUID and by serial number of each GPU whose score reaches `limit`."""
    summaries: dict[str, str] = {}
    for uuid, incidents in cards.items():
        points = score(incidents, (), now, days)
        if not incidents or points < limit:
            continue
        newest = max(incidents, key=lambda incident: incident.last)
        day = datetime.fromtimestamp(newest.last, UTC)
        text = f"score {points:g}; last on {newest.node}, {day:%Y-%m-%d}: {newest.check}: {newest.evidence[:80]}"
        summaries[uuid] = text
        summaries |= {incident.serial: text for incident in incidents if incident.serial}
    return summaries
