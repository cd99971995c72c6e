"""What is remembered of nodes beside what the logs of an attempt tell of its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import InputError
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.incident_summary import summarize_node, summarize_nodes
from opsctl.nodesets import expand

_ANY_NODES = frozenset({CauseKind.UNKNOWN, CauseKind.NODE, CauseKind.GPU, CauseKind.NETWORK})
"""Where a log names no node, any of the attempt's may be to blame for these."""


def add_node_history(
    diagnosis: Diagnosis, history: NodeHistory, allocated: str, *, at: datetime, days: float
) -> Diagnosis:
    """`found`, and what health knows of its node; where the logs name none, of all nodes of the attempt (`allocated`).

    It adds words, and changes neither cause nor suspects.
    """
    try:
        nodes = expand(allocated)
    except InputError:
        nodes = []
    own = next((node for node in (diagnosis.node, diagnosis.node.partition(".")[0]) if node and node in nodes), "")
    lines: list[str] = []
    try:
        if own:
            lines = summarize_node(history.read(own), history.cards(), at=at, days=days)
        elif not diagnosis.node and diagnosis.kind in _ANY_NODES:
            lines = summarize_nodes([history.read(node) for node in nodes], at=at)
    except (OSError, TypeError, ValueError) as error:
        # A file that holds what is no figure, say: the cause stands without it.
        lines = [f"the history of the nodes cannot be read: {error}"]
    return replace(diagnosis, also=(*diagnosis.also, *lines))
