"""Node lists as Slurm folds them."""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

from opsctl.errors import InputError


def expand(text: str) -> list[str]:
    """Every node of a list such as `node[001-004,007]`, in order. Raises InputError."""
    try:
        return list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetParseError as error:
        raise InputError(f"{text!r} is no node list: {error}", hint="such as node[001-004,007]") from error


def fold(nodes: Iterable[str]) -> str:
    """The shortest list of these nodes."""
    return str(NodeSet.fromlist(sorted(set(nodes)), resolver=RESOLVER_NOGROUP))
