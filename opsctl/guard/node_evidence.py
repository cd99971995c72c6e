"""Evidence from the node history, added to a diagnosis."""

from dataclasses import replace
from datetime import datetime

from opsctl.base.nodesets import expand_if_list
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.incident_summary import summarize_node, summarize_nodes

_ANY_NODES = frozenset({CauseKind.UNKNOWN, CauseKind.HANG, CauseKind.NODE, CauseKind.GPU, CauseKind.NETWORK})
"""Causes for which any node of the attempt may be to blame, if the logs name no node."""


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
