"""Whether a failure follows a node through the attempts of a train, from the journal. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from opsctl.base.nodesets import expand_if_list
from opsctl.diagnosis.blame import Proof, find_rule
from opsctl.diagnosis.causes import CauseKind
from opsctl.state.events import AttemptFinalized, AttemptStarted, Diagnosed, Event

MESSAGES = frozenset({Proof.MESSAGE, Proof.SLURM})


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
