"""Parse and fold Slurm's node lists.

Groups such as `@all` are refused: to resolve a group, ClusterShell would run a shell command with the group's name, and
a team member's request may contain any name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opsctl.base.errors import InputError

if TYPE_CHECKING:
    from ClusterShell.NodeSet import NodeSet

MAX_NODES = 100_000
"""Nodes in one list: more than any cluster has. A few characters can name more nodes than fit into memory."""
MAX_LIST_CHARS = 1 << 16
MAX_NAME_CHARS = 1000
"""ClusterShell needs a time that grows with the square of a name's length."""
MAX_NAMES_OF_SEVERAL_NUMBERS = 500
"""Such as r1i2n3: ClusterShell folds them in a time that grows with the square of their number."""
_SPAN = r"\d{1,9}(?:-\d{1,9}(?:/\d{1,9})?)?"
_NODES = rf"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[{_SPAN}(?:,{_SPAN})*\])*"
_LIST = re.compile(rf"(?:{_NODES}(?:,{_NODES})*)?", re.ASCII)
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)
"""A node name: safe in an argument list, in a file name, and in the tokens of ssh_config."""
_TERM = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)+")
_BRACKET = re.compile(r"\[([^\]]*)")
_SEVERAL_NUMBERS = re.compile(r"\d[^\d,]+\d[^,]*")
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)


def nodeset(text: str) -> NodeSet:
    """Parse a node list such as `node[001-004,007]`. Raises InputError.

    The text is checked by a grammar with bounds first: ClusterShell raises any exception for some texts, and takes
    minutes for others.
    """
    if not is_node_list(text):
        raise InputError(f"{text!r:.80} is not a node list", hint="such as node[001-004,007]")
    if sum(map(_count_nodes, _TERM.findall(text))) > MAX_NODES:
        raise InputError(f"{text!r:.80} names more than {MAX_NODES} nodes")
    if len(_SEVERAL_NUMBERS.findall(_BRACKET.sub("1", text))) > MAX_NAMES_OF_SEVERAL_NUMBERS:
        raise InputError(f"{text!r:.80} has more than {MAX_NAMES_OF_SEVERAL_NUMBERS} parts with several numbers")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError  # noqa: PLC0415 (slow import)

    try:
        return NodeSet(text, resolver=RESOLVER_NOGROUP)
    except (NodeSetParseError, AssertionError) as error:  # AssertionError: numbers that its ranges cannot hold
        raise InputError(f"{text!r:.80} is not a node list: {error}", hint="such as node[001-004,007]") from error


def is_node_list(text: str) -> bool:
    """Return whether the text has the form of a node list, within bounds. Time and memory are linear in the text."""
    if len(text) > MAX_LIST_CHARS or not _LIST.fullmatch(text):
        return False
    return all(len(part) <= MAX_NAME_CHARS for part in re.split(r",|\[[^\]]*\]", text))


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


def expand_if_list(text: str) -> tuple[str, ...]:
    """Return every node of a list, in order; nothing for a text that is no node list."""
    try:
        return tuple(expand(text))
    except InputError:
        return ()


def fold(nodes: Iterable[str]) -> str:
    """Return the shortest list of these nodes."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 (slow import)

    return str(NodeSet.fromlist(sorted(set(nodes)), resolver=RESOLVER_NOGROUP))


def hostname() -> str:
    """Return this machine's name. A node of Slurm may have another name."""
    return os.uname().nodename
