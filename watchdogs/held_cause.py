"""The cause of the last end of a train in a few words, as alerts, pages and `opsctl status` name it. Pure."""

from collections.abc import Collection
from textwrap import shorten

from opsctl.base.nodesets import expand_if_list
from opsctl.diagnosis.blame import may_exclude
from opsctl.diagnosis.causes import CauseKind, find_row
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.state.events import Diagnosed
from opsctl.state.journal import TrainHistory

MAX_CAUSE_CHARS = 100
"""The subject of an alert also says how often, and how many tasks wait."""


def describe_cause(history: TrainHistory) -> str:
    """Return the diagnosed cause of the last end with nodes and count: `a GPU fell off node017, twice`.

    Nodes are named for causes that may lie in a node. Empty without a diagnosis.
    """
    last = history.diagnosed.get(next(reversed(history.finalized), ""))
    if last is None or last.cause in {"nothing", "unknown"}:
        return ""
    same = list_same_cause(history, last.attempt)
    nodes = list(dict.fromkeys(filter(None, (event.node for event in same))))
    is_of_node = may_blame_node(last)
    on = f" on {nodes[0]}" if len(nodes) == 1 and is_of_node else ""
    if len(nodes) > 1 and is_of_node:
        on = f" on {len(nodes)} nodes, last {nodes[0]}"
    times = {0: "", 1: "", 2: ", twice"}.get(len(same), f", {len(same)} times in a row")
    return f"{shorten(last.says, MAX_CAUSE_CHARS, placeholder='…')}{on}{times}"


def may_blame_node(diagnosis: Diagnosed) -> bool:
    """Return whether the cause may lie in a node: an error of the program names only where it was raised."""
    return diagnosis.cause_kind in set(CauseKind) and may_exclude(CauseKind(diagnosis.cause_kind))


def list_same_cause(history: TrainHistory, attempt: str) -> list[Diagnosed]:
    """Return the diagnoses of the newest attempts, all with the cause of `attempt`, the newest first."""
    last = history.diagnosed.get(attempt)
    same: list[Diagnosed] = []
    for name in reversed(history.finalized):
        diagnosis = history.diagnosed.get(name)
        if last is None or diagnosis is None or diagnosis.cause != last.cause:
            break
        same.append(diagnosis)
    return same


def advise_still(diagnosis: Diagnosed | Diagnosis, excluded: Collection[str]) -> str:
    """Return the advice without the exclusion of nodes that are excluded already."""
    nodes = expand_if_list(diagnosis.node)
    cause = find_row(diagnosis.cause) if nodes and set(nodes) <= set(excluded) else None
    advice = cause.once_excluded if cause else ""
    return advice[:1].upper() + advice[1:] or diagnosis.advice
