"""Node lists as Slurm folds them.

A group such as `@all` is no node here: to look one up, ClusterShell would run a shell with the group's name in it, and
a team-mate's request may name any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

from opsctl.errors import InputError

MOST = 100_000
"""Nodes of one list. No cluster has as many, and a list of few characters could name more than fit into memory."""
_TERM = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)+")
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)


def nodeset(text: str) -> NodeSet:
    """A node list such as `node[001-004,007]` as a set. Raises InputError."""
    if sum(map(_count, _TERM.findall(text))) > MOST:
        raise InputError(f"{text!r:.80} names more than {MOST} nodes")
    try:
        return NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetParseError as error:
        raise InputError(f"{text!r} is not a node list: {error}", hint="such as node[001-004,007]") from error


def _count(term: str) -> int:
    """How many nodes a term without commas outside of brackets names, at the most."""
    sizes = (
        sum(int(span[2]) - int(span[1]) + 1 if (span := _RANGE.match(part)) else 1 for part in bracket.split(","))
        for bracket in re.findall(r"\[([^\]]*)", term)
    )
    return math.prod(sizes)


def union(texts: Iterable[str]) -> NodeSet:
    """All nodes of these lists. Raises InputError."""
    node_set = nodeset("")
    for text in texts:
        node_set.update(nodeset(text))
    return node_set


def expand(text: str) -> list[str]:
    """Every node of a list, in order. Raises InputError."""
    return list(nodeset(text))


def fold(nodes: Iterable[str]) -> str:
    """The shortest list of these nodes."""
    return str(NodeSet.fromlist(sorted(set(nodes)), resolver=RESOLVER_NOGROUP))
