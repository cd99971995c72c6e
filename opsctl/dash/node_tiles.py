"""The nodes of the cluster with their health and its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from opsctl.app import App
from opsctl.model import Node
from opsctl.nodes.drain_plan import is_out
from opsctl.nodes.history import NodeRecord

_TONE_BY_HEALTH = {"healthy": "green", "degraded": "amber", "faulty": "red", "unknown": "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    """One node."""

    name: str
    tone: str
    state: str
    """Slurm's word with its flags."""
    health: str
    """The verdict of the last health check; empty without any."""
    checked: datetime | None
    why: str
    evidence: tuple[str, ...]
    trains: tuple[str, ...]

    @property
    def is_bad(self) -> bool:
        return bool(self.why) or self.tone in {"red", "amber"}


def list_node_tiles(app: App, nodes: Sequence[Node], trains_on: Mapping[str, Sequence[str]]) -> Iterator[NodeTile]:
    """Yield a tile for every node, without a call of Slurm."""
    excluded = {exclusion.node: exclusion.reason for exclusion in app.exclusions.now()}
    records = {record.node: record for record in app.history.all()}
    for node in nodes:
        record = records.get(node.name) or NodeRecord(node=node.name)
        why = node.reason or (f"excluded from our trains: {excluded[node.name]}" if node.name in excluded else "")
        yield NodeTile(
            name=node.name,
            tone=_find_tone(node, record, is_excluded=node.name in excluded),
            state=node.state,
            health=record.health,
            checked=datetime.fromtimestamp(record.at, UTC) if record.at else None,
            why=why,
            evidence=record.evidence if record.health not in {"", "healthy"} else (),
            trains=tuple(trains_on.get(node.name, ())),
        )


def _find_tone(node: Node, record: NodeRecord, *, is_excluded: bool) -> str:
    """Return the colour: red for a faulty node or one that is down, amber out of service; else by its health."""
    if "DOWN" in node.state or "NOT_RESPONDING" in node.state or node.state.endswith("*") or record.health == "faulty":
        return "red"
    if is_out(node) or is_excluded:
        return "amber"
    return _TONE_BY_HEALTH.get(record.health, "quiet")
