"""The tiles of the nodes: Slurm's state, the last health check and the exclusion of each."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from opsctl.app import App
from opsctl.base.model import Node
from opsctl.nodes.drain_plan import is_out
from opsctl.nodes.history import NodeRecord

_TONE_BY_HEALTH = {"healthy": "green", "degraded": "amber", "faulty": "red"}
"""Others have not been checked, or not with a result."""
_ORDER = ("red", "amber", "unknown", "quiet", "green")
"""Colours, the worst first."""
MAX_LOST_NODES = 3
"""Named below the headline of a train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    """One node: Slurm's state, the last health check and the exclusion, each on its own."""

    name: str
    state: str
    """Slurm's word, with `*` for a node that does not respond."""
    state_tone: str
    health: str
    """The verdict of the last health check; empty without any."""
    health_tone: str
    checked: datetime | None
    excluded_since: datetime | None
    """Since when opsctl gives the node to no new attempt; None for a node that it gives."""
    why_excluded: str
    why_out: str
    """Slurm's reason for a node out of service."""
    evidence: tuple[str, ...]
    trains: tuple[str, ...]
    """The trains that run on the node."""
    ended: tuple[str, ...]
    """The trains that do not run, and whose last attempt ran on the node."""

    @property
    def is_bad(self) -> bool:
        return self.tone in {"red", "amber"} or bool(self.why_out)

    @property
    def tone(self) -> str:
        """The worse of the state's and the health's colour; amber for a train on an excluded node."""
        tones = [self.state_tone, self.health_tone]
        if self.excluded_since and self.trains:
            tones.append("amber")
        return min(tones, key=_ORDER.index)


def list_node_tiles(
    app: App,
    nodes: Sequence[Node],
    trains_on: Mapping[str, Sequence[str]],
    ended_on: Mapping[str, Sequence[str]],
) -> Iterator[NodeTile]:
    """Yield a tile for every node, without a call of Slurm."""
    excluded = {exclusion.node: exclusion for exclusion in app.exclusions.shown()}
    records = {record.node: record for record in app.history.all()}
    for node in nodes:
        record = records.get(node.name) or NodeRecord(node=node.name)
        exclusion = excluded.get(node.name)
        yield NodeTile(
            name=node.name,
            state=describe_state(node.state),
            state_tone=_find_state_tone(node),
            health=record.health,
            health_tone=_TONE_BY_HEALTH.get(record.health, "quiet"),
            checked=datetime.fromtimestamp(record.at, UTC) if record.at else None,
            excluded_since=datetime.fromtimestamp(exclusion.since, UTC) if exclusion else None,
            why_excluded=exclusion.reason if exclusion else "",
            why_out=node.reason,
            evidence=record.evidence if record.health not in {"", "healthy"} else (),
            trains=tuple(trains_on.get(node.name, ())),
            ended=tuple(ended_on.get(node.name, ())),
        )


def describe_lost_nodes(last_nodes: Collection[str], tiles: Sequence[NodeTile]) -> tuple[str, ...]:
    """Return a sentence for each node of the last attempt that is out of service or excluded: the first few."""
    texts = []
    for tile in tiles:
        facts = [tile.state] if tile.state_tone in {"red", "amber"} else []
        facts += ["excluded for new attempts"] if tile.excluded_since else []
        if tile.name in last_nodes and facts:
            texts.append(f"{tile.name}, a node of the last attempt, is {' and '.join(facts)}")
    more = len(texts) - MAX_LOST_NODES
    return (*texts[:MAX_LOST_NODES], *([f"{more} more nodes of the last attempt are out of service"] * (more > 0)))


def describe_state(state: str) -> str:
    """Return Slurm's state as Slurm lists it: `DOWN*` instead of `DOWN+NOT_RESPONDING`."""
    words = (word for word in state.rstrip("*").split("+") if word != "NOT_RESPONDING")
    return "+".join(words) + "*" * is_silent(state)


def is_silent(state: str) -> bool:
    """Return whether a node does not respond, by Slurm's state."""
    return state.endswith("*") or "NOT_RESPONDING" in state


def _find_state_tone(node: Node) -> str:
    """Return the colour of Slurm's state: red for a node that is down, amber out of service."""
    if "DOWN" in node.state or is_silent(node.state):
        return "red"
    return "amber" if is_out(node) else "quiet"
