"""Which nodes to take out of service, and which to put back: frozen plans, made purely, with limits.

Nothing is ever drained on ignorance, beyond the cap, or where the reason is somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opsctl.errors import InputError
from opsctl.model import Node
from opsctl.nodes.health.node_state import Health, NodeSnapshot, Verdict
from opsctl.nodes.history import NodeRecord
from opsctl.settings.health import HealthSettings

PREFIX = "opsctl: "
"""What our reasons begin with. A node whose reason does not is not ours to touch."""
LONGEST_REASON = 200
OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING", "ERROR", "INVAL", "MAINT", "REBOOT"})
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node to drain, or to put back. `seen` is how it was when that was decided."""

    node: str
    reason: str
    snapshot: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedNode:
    """One node that is left alone though something is wrong with it, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    steps: tuple[Step, ...]
    left: tuple[SkippedNode, ...] = ()
    notes: tuple[str, ...] = ()
    cap: int = 0
    """So many nodes may be out of service by us at once, those that are already included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """What a train needs."""

    train: str
    nodes: int


def state_words(node: Node) -> frozenset[str]:
    """The words of its state."""
    return frozenset(re.findall(r"[A-Z_]+", node.state.upper()))


def is_out(node: Node) -> bool:
    """Out of service, or on its way there."""
    return bool(state_words(node) & OUT)


def is_ours(node: Node) -> bool:
    """Out of service by us."""
    return is_out(node) and node.reason.startswith(PREFIX)


def busy_by_node(nodes: Iterable[Node]) -> dict[str, bool]:
    """Whether each has a job, for those of which Slurm's word says so."""
    found: dict[str, bool] = {}
    for node in nodes:
        state = state_words(node)
        if state & BUSY or "DRAINING" in state:
            found[node.name] = True
        elif state & {"IDLE", "DRAINED"} and "NOT_RESPONDING" not in state and "*" not in node.state:
            found[node.name] = False
    return found


def render_reason(verdict: Verdict) -> str:
    """`opsctl: <check>: <evidence>`, in plain characters on one line: Slurm eats quotes."""
    worst = verdict.evidence[0]
    return format_reason(f"{worst.check}: {worst.gpu + ' ' if worst.gpu else ''}{worst.evidence}")


def format_reason(text: str) -> str:
    """A reason of ours, as `render_reason`."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in "\"'`\\" else " " for c in text)
    return (PREFIX + " ".join(plain.split()))[:LONGEST_REASON]


def compute_cap(site: HealthSettings, total: int, asked: str = "") -> int:
    """How many nodes we may have out of service: the site's limits, and a lower one that was `asked` for."""
    limits = [site.drain_max, max(1, int(total * site.drain_percent / 100))]
    if asked:
        match = re.fullmatch(r"(\d{1,6})(%?)", asked, re.ASCII)
        if match is None:
            raise InputError(f"--max {asked!r} is neither a number nor a share", hint="such as 3 or 5%")
        limits.append(int(total * int(match[1]) / 100) if match[2] else int(match[1]))
    return min(limits)


def plan_drain(
    verdicts: Sequence[Verdict], nodes: Sequence[Node], site: HealthSettings, *, scores: Mapping[str, float],
    demands: Sequence[NodeDemand] = (), excluded: frozenset[str] = frozenset(), most: str = "",
) -> NodePlan:  # fmt: skip
    """What to drain, the worst first; what is `excluded` by us is out of service too. Raises InputError."""
    named = {node.name: node for node in nodes}
    cap = compute_cap(site, len(nodes), most)
    bad = {each.node for each in verdicts if each.is_bad}
    room = cap - len({node.name for node in nodes if is_ours(node)} | (excluded - bad))
    steps: list[Step] = []
    left: list[SkippedNode] = []
    order = sorted(
        (each for each in verdicts if each.is_bad and each.evidence),
        key=lambda each: (each.health is not Health.FAULTY, -scores.get(each.node, 0.0), each.node),
    )
    for verdict in order:
        node = named.get(verdict.node)
        if why := _left_alone(node):
            left.append(SkippedNode(node=verdict.node, why=why))
        elif len(steps) >= room:
            left.append(
                SkippedNode(node=verdict.node, why=f"beyond the cap of {cap} nodes that opsctl takes out at once")
            )
        else:
            assert node is not None, "left alone otherwise"
            steps.append(Step(node=verdict.node, reason=render_reason(verdict), snapshot=node))
    return NodePlan(steps=tuple(steps), left=tuple(left), cap=cap, notes=tuple(_spare(nodes, steps, demands)))


def plan_reboot(
    chosen: Sequence[str], nodes: Sequence[Node], site: HealthSettings, *, why: str,
    excluded: frozenset[str] = frozenset(), most: str = "",
) -> NodePlan:  # fmt: skip
    """Which of the `chosen` nodes to boot anew, within the limits of drains; what is `excluded` by us is out of service
    too. Raises InputError."""
    named, cap = {node.name: node for node in nodes}, compute_cap(site, len(nodes), most)
    out = {node.name for node in nodes if is_ours(node)} | excluded
    steps: list[Step] = []
    left: list[SkippedNode] = []
    for name in chosen:
        node = named.get(name)
        state = state_words(node) if node else frozenset()
        if node is None:
            left.append(SkippedNode(node=name, why="Slurm does not list it"))
        elif any(word.startswith("REBOOT") for word in state):
            left.append(SkippedNode(node=name, why=f"is to be booted already: {node.state}"))
        elif is_out(node) and not is_ours(node):
            left.append(SkippedNode(node=name, why=_left_alone(node)))
        elif len(out | {name}) > cap:
            left.append(SkippedNode(node=name, why=f"beyond the cap of {cap} nodes that opsctl takes out at once"))
        else:
            out.add(name)
            steps.append(Step(node=name, reason=format_reason(f"reboot: {why}"), snapshot=node))
    return NodePlan(steps=tuple(steps), left=tuple(left), cap=cap)


def _left_alone(node: Node | None) -> str:
    if node is None:
        return "Slurm does not list it"
    if is_ours(node):
        return f"is drained already: {node.reason}"
    return f"is {node.state} by somebody else: {node.reason or 'no reason given'}" if is_out(node) else ""


def _spare(nodes: Sequence[Node], steps: Sequence[Step], demands: Sequence[NodeDemand]) -> Iterable[str]:
    """Which trains would no longer fit."""
    gone = {step.node for step in steps}
    for want in demands:
        left = sum(not is_out(node) and node.name not in gone for node in nodes)
        if left < want.nodes:
            yield f"{want.train}'s {want.nodes} nodes no longer fit: {left} left"


def has_changed(step: Step, now: Node | None) -> str:
    """Why a node is not to be touched any more; empty if it is as it was when the plan was made."""
    if now is None:
        return "Slurm does not list it any more"
    if (is_out(now), now.reason) != (is_out(step.snapshot), step.snapshot.reason):
        return f"has changed since: {now.state}, {now.reason or 'no reason'}"
    return ""


def plan_undrain(
    verdicts: Sequence[Verdict], nodes: Sequence[Node], site: HealthSettings, *, records: Mapping[str, NodeRecord],
    snapshots: Mapping[str, NodeSnapshot], since: Mapping[str, float],
) -> NodePlan:  # fmt: skip
    """What to put back: ours that passed twice `since` they were taken out, and others' whose reason
    the site lists and which are free again."""
    looked = {each.node: each for each in verdicts}
    steps, left = [], []
    for node in nodes:
        if not (is_ours(node) or is_listed(node, site)):
            continue
        verdict, snapshot = looked.get(node.name), snapshots.get(node.name)
        if verdict is None or snapshot is None:
            why = "was not looked at"
        elif is_ours(node):
            why = _not_passed(verdict, records.get(node.name), site, since.get(node.name, 0.0))
        else:
            why = _not_free(verdict, snapshot, site)
        if why:
            left.append(SkippedNode(node=node.name, why=why))
        else:
            steps.append(Step(node=node.name, reason=node.reason, snapshot=node))
    return NodePlan(steps=tuple(steps), left=tuple(left))


def is_listed(node: Node, site: HealthSettings) -> bool:
    """Out for a reason that the site lets us take back."""
    return is_out(node) and any(node.reason.startswith(undrain_reason) for undrain_reason in site.undrain_reasons)


def _not_passed(verdict: Verdict, record: NodeRecord | None, site: HealthSettings, since: float) -> str:
    if verdict.health is not Health.HEALTHY:
        return f"is {verdict.health.value}: {_first(verdict)}"
    passed = [at for at in record.passed if at >= since] if record else []
    if len(passed) < 2 or passed[-1] - passed[0] < site.undrain_gap_seconds:
        return f"has passed once: look again after {site.undrain_gap_seconds:g} s"
    return ""


def _not_free(verdict: Verdict, snapshot: NodeSnapshot, site: HealthSettings) -> str:
    if verdict.health is not Health.HEALTHY:
        return f"is {verdict.health.value}: {_first(verdict)}"
    if snapshot.processes is None:
        return "its processes cannot be seen"
    users = [
        process for process in snapshot.processes if process.uid >= site.user_uid_min and process.state not in "ZX"
    ]
    # What we run there ourselves in order to look.
    users = [user for user in users if not (user.uid == snapshot.uid and user.age < 120)]
    some = ", ".join(f"{user.pid} ({user.name}, uid {user.uid})" for user in users[:4])
    return f"{len(users)} processes of users: {some}" if users else ""


def _first(verdict: Verdict) -> str:
    result = next(iter(verdict.evidence or verdict.results), None)
    return f"{result.check}: {result.evidence}" if result else "nothing is known"
