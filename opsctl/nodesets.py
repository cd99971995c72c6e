"""Parse and fold Slurm's node lists.

Groups such as `@all` are refused: to resolve a group, ClusterShell would run a shell command with the group's name, and
a team member's request may contain any name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

from opsctl.errors import InputError

MAX_NODES = 100_000
"""Nodes in one list: more than any cluster has. A few characters can name more nodes than fit into memory."""
_TERM = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)+")
_BRACKET = re.compile(r"\[([^\]]*)")
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)


def nodeset(text: str) -> NodeSet:
    """Parse a node list such as `node[001-004,007]`. Raises InputError."""
    if sum(map(_count_nodes, _TERM.findall(text))) > MAX_NODES:
        raise InputError(f"{text!r:.80} names more than {MAX_NODES} nodes")
    try:
        return NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetParseError as error:
        raise InputError(f"{text!r} is not a node list: {error}", hint="such as node[001-004,007]") from error


def _count_nodes(term: str) -> int:
    """Return an upper bound for the nodes that a term names; the term has no commas outside of brackets."""
    return math.prod(_count_bracket(bracket) for bracket in _BRACKET.findall(term))


def _count_bracket(bracket: str) -> int:
    count = 0
    for part in bracket.split(","):
        span = _RANGE.match(part)
        count += int(span[2]) - int(span[1]) + 1 if span else 1
    return count


def union(texts: Iterable[str]) -> NodeSet:
    """Return all nodes of several lists. Raises InputError."""
    nodes = nodeset("")
    for text in texts:
        nodes.update(nodeset(text))
    return nodes


def expand(text: str) -> list[str]:
    """Return every node of a list, in order. Raises InputError."""
    return list(nodeset(text))


def fold(nodes: Iterable[str]) -> str:
    """Return the shortest list of these nodes."""
    return str(NodeSet.fromlist(sorted(set(nodes)), resolver=RESOLVER_NOGROUP))
