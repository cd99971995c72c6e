"""Plans to drain, reboot and undrain nodes. Pure.

A plan never drains a node of unknown health, never exceeds the cap, and never touches a node that others took out of
service.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from opsctl.base.errors import InputError
from opsctl.base.model import DrainReason, Node
from opsctl.base.units import format_duration
from opsctl.nodes.health.node_state import Health, NodeSnapshot, Verdict
from opsctl.nodes.history import NodeRecord
from opsctl.settings.health import HealthSettings
from opsctl.slurm.field_values import JOB_WORDS, OUT_OF_SERVICE_WORDS

PREFIX = "opsctl: "
"""Start of every drain reason that opsctl writes. opsctl leaves nodes with other reasons alone."""
MAX_REASON_CHARS = 200
MAX_OWN_PROCESS_AGE_S = 120
"""A younger process of the checking user belongs to the health check itself."""
MAX_NAMED_PROCESSES = 4
REBOOT_SUFFIXES = re.compile(r"(?: : reboot (?:requested|issued|complete|timed out|cancelled))*", re.IGNORECASE)
"""Text that Slurm itself adds to a reason when the node reboots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node to drain, reboot or undrain."""

    node: str
    reason: str
    snapshot: Node
    """The node as Slurm reported it when the plan was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedNode:
    """A node that the plan leaves alone, and the reason."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    steps: tuple[Step, ...]
    left: tuple[SkippedNode, ...] = ()
    notes: tuple[str, ...] = ()
    cap: int = 0
    """Maximum number of nodes that opsctl has out of service at once, including earlier ones."""


def state_words(node: Node) -> frozenset[str]:
    """Return the words of a node's state: IDLE and DRAIN for `IDLE+DRAIN`."""
    return frozenset(re.findall(r"[A-Z_]+", node.state.upper()))


def is_out(node: Node) -> bool:
    """Return whether a node is out of service, or draining."""
    return bool(state_words(node) & OUT_OF_SERVICE_WORDS)


def is_ours(node: Node) -> bool:
    """Return whether opsctl took a node out of service."""
    return is_out(node) and node.reason.startswith(PREFIX)


def find_amended(
    nodes: Iterable[Node], records: Mapping[str, NodeRecord], reasons: Iterable[DrainReason]
) -> dict[str, str]:
    """Return, by node, why a reason that starts like opsctl's is no longer opsctl's own. Such nodes are left alone.

    A person may amend the text, or set the same text again as another user.
    """
    reason_by_node = {reason.node: reason for reason in reasons}
    amended: dict[str, str] = {}
    for node in filter(is_ours, nodes):
        record, reason = records.get(node.name), reason_by_node.get(node.name)
        if record is None or not record.drain_reason:
            amended[node.name] = f"this site has no record of its reason: {node.reason}"
        elif not _is_same_text(record.drain_reason, node.reason):
            amended[node.name] = f"its reason was amended: {node.reason}"
        elif reason and reason.by and record.drained_by and reason.by != record.drained_by:
            amended[node.name] = f"{reason.by} has set its reason, not {record.drained_by}: {node.reason}"
    return amended


def _is_same_text(written: str, reported: str) -> bool:
    """Return whether Slurm reports the reason that opsctl wrote. Slurm may change white space, and notes reboots."""
    before, after = " ".join(written.split()), " ".join(reported.split())
    return after.startswith(before) and REBOOT_SUFFIXES.fullmatch(after[len(before) :]) is not None


def busy_by_node(nodes: Iterable[Node]) -> dict[str, bool]:
    """Return whether a node has a job, by node name. Nodes in any other state, such as DOWN, are left out."""
    has_job: dict[str, bool] = {}
    for node in nodes:
        state = state_words(node)
        if state & JOB_WORDS or "DRAINING" in state:
            has_job[node.name] = True
        elif state & {"IDLE", "DRAINED"} and "NOT_RESPONDING" not in state and "*" not in node.state:
            has_job[node.name] = False
    return has_job


def render_reason(verdict: Verdict) -> str:
    """Return the drain reason `opsctl: <check>: <evidence>` for a node's worst result."""
    worst = verdict.evidence[0]
    gpu = f"{worst.gpu} " if worst.gpu else ""
    return format_reason(f"{worst.check}: {gpu}{worst.evidence}")


def format_reason(text: str) -> str:
    """Return a drain reason of one line, in printable ASCII without quotes. Slurm drops quotes."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in "\"'`\\" else " " for c in text)
    return (PREFIX + " ".join(plain.split()))[:MAX_REASON_CHARS]


def compute_cap(site: HealthSettings, total: int, limit: str = "") -> int:
    """Return how many of `total` nodes opsctl may have out of service: the site's limits, lowered by `limit` (`--max`).

    Raises InputError for a `limit` that is neither a number nor a percentage.
    """
    caps = [site.drain_max, max(1, int(total * site.drain_percent / 100))]
    if limit:
        match = re.fullmatch(r"(\d{1,6})(%?)", limit, re.ASCII)
        if match is None:
            raise InputError(f"--max {limit!r} is neither a number nor a percentage", hint="such as 3 or 5%")
        number, is_percentage = int(match[1]), bool(match[2])
        caps.append(int(total * number / 100) if is_percentage else number)
    return min(caps)


def plan_drain(
    verdicts: Sequence[Verdict],
    nodes: Sequence[Node],
    site: HealthSettings,
    *,
    scores: Mapping[str, float],
    demands: Mapping[str, int] = MappingProxyType({}),
    excluded: frozenset[str] = frozenset(),
    most: str = "",
) -> NodePlan:
    """Plan which nodes to drain: faulty before degraded, then the highest flaky-node score first.

    `demands` is the number of nodes that a train needs, by train. `excluded` nodes count towards the cap. `most` lowers
    the cap, as `--max` does. Raises InputError.
    """
    node_by_name = {node.name: node for node in nodes}
    cap = compute_cap(site, len(nodes), most)
    bad = [verdict for verdict in verdicts if verdict.is_bad and verdict.evidence]
    out = {node.name for node in nodes if is_ours(node)} | (excluded - {verdict.node for verdict in bad})
    room = cap - len(out)
    steps: list[Step] = []
    left: list[SkippedNode] = []
    by_urgency = sorted(bad, key=lambda bad: (bad.health is not Health.FAULTY, -scores.get(bad.node, 0.0), bad.node))
    for verdict in by_urgency:
        node = node_by_name.get(verdict.node)
        if node is None or is_out(node):
            left.append(SkippedNode(node=verdict.node, why=_why_left_alone(node)))
        elif len(steps) >= room:
            left.append(SkippedNode(node=verdict.node, why=_why_capped(cap)))
        else:
            steps.append(Step(node=verdict.node, reason=render_reason(verdict), snapshot=node))
    return NodePlan(
        steps=tuple(steps), left=tuple(left), cap=cap, notes=tuple(_find_short_trains(nodes, steps, demands))
    )


def plan_reboot(
    chosen: Sequence[str],
    nodes: Sequence[Node],
    site: HealthSettings,
    *,
    why: str,
    excluded: frozenset[str] = frozenset(),
    amended: Mapping[str, str] = MappingProxyType({}),
    most: str = "",
) -> NodePlan:
    """Plan which of the `chosen` nodes to reboot, within the cap of drains.

    `excluded` nodes count towards the cap. `amended` holds the nodes of ours that a person has taken over, and why.
    `most` lowers the cap, as `--max` does. Raises InputError.
    """
    node_by_name = {node.name: node for node in nodes}
    cap = compute_cap(site, len(nodes), most)
    out = {node.name for node in nodes if is_ours(node)} | excluded
    steps: list[Step] = []
    left: list[SkippedNode] = []
    for name in chosen:
        node = node_by_name.get(name)
        if node is None:
            left.append(SkippedNode(node=name, why=_why_left_alone(node)))
        elif any(word.startswith("REBOOT") for word in state_words(node)):
            left.append(SkippedNode(node=name, why=f"reboot already requested: {node.state}"))
        elif is_out(node) and not is_ours(node):
            left.append(SkippedNode(node=name, why=_why_left_alone(node)))
        elif name in amended:
            left.append(SkippedNode(node=name, why=amended[name]))
        elif len(out | {name}) > cap:
            left.append(SkippedNode(node=name, why=_why_capped(cap)))
        else:
            out.add(name)
            steps.append(Step(node=name, reason=format_reason(f"reboot: {why}"), snapshot=node))
    return NodePlan(steps=tuple(steps), left=tuple(left), cap=cap)


def _why_capped(cap: int) -> str:
    return f"beyond the cap of {cap} nodes that opsctl takes out at once"


def _why_left_alone(node: Node | None) -> str:
    """Return why opsctl does not touch a node that is missing or out of service."""
    if node is None:
        return "Slurm does not list the node"
    if is_ours(node):
        return f"is drained already: {node.reason}"
    return f"is {node.state}, not by opsctl: {node.reason or 'no reason given'}"


def _find_short_trains(nodes: Sequence[Node], steps: Sequence[Step], demands: Mapping[str, int]) -> Iterable[str]:
    """Yield a note for each train that no longer fits once the nodes of `steps` are drained."""
    drained = {step.node for step in steps}
    remaining = sum(not is_out(node) and node.name not in drained for node in nodes)
    for train, needed in demands.items():
        if remaining < needed:
            yield f"{train}'s {needed} nodes no longer fit: {remaining} left"


def has_changed(step: Step, now: Node | None) -> str:
    """Return why a planned step no longer applies, an empty string if the node is as it was when the plan was made."""
    if now is None:
        return "Slurm no longer lists the node"
    if (is_out(now), now.reason) != (is_out(step.snapshot), step.snapshot.reason):
        return f"has changed since: {now.state}, {now.reason or 'no reason'}"
    return ""


def plan_undrain(
    verdicts: Sequence[Verdict],
    nodes: Sequence[Node],
    site: HealthSettings,
    *,
    records: Mapping[str, NodeRecord],
    snapshots: Mapping[str, NodeSnapshot],
    since: Mapping[str, float],
    amended: Mapping[str, str] = MappingProxyType({}),
) -> NodePlan:
    """Plan which nodes to put back into service.

    A node that opsctl drained must have passed two health checks `since` the drain (Unix time by node), and must not be
    `amended` (why, by node). A node that others drained must have a reason that the site lists, be healthy, and have no
    user process left.
    """
    verdict_by_node = {verdict.node: verdict for verdict in verdicts}
    steps: list[Step] = []
    left: list[SkippedNode] = []
    for node in nodes:
        if not (is_ours(node) or is_listed(node, site)):
            continue
        verdict, snapshot = verdict_by_node.get(node.name), snapshots.get(node.name)
        if node.name in amended:
            why = amended[node.name]
        elif verdict is None or snapshot is None:
            why = "was not checked"
        elif verdict.health is not Health.HEALTHY:
            why = f"is {verdict.health.value}: {_render_first_result(verdict)}"
        elif is_ours(node):
            why = _why_not_passed(records.get(node.name), site, since.get(node.name, 0.0))
        else:
            why = _why_not_free(snapshot, site)
        if why:
            left.append(SkippedNode(node=node.name, why=why))
        else:
            steps.append(Step(node=node.name, reason=node.reason, snapshot=node))
    return NodePlan(steps=tuple(steps), left=tuple(left))


def is_listed(node: Node, site: HealthSettings) -> bool:
    """Return whether a node is out of service for a reason that the site allows opsctl to undrain.

    An amended reason is another reason: a listed reason is the whole text, or the beginning if it ends with `*`.
    """
    return is_out(node) and any(
        node.reason == listed or (listed.endswith("*") and node.reason.startswith(listed[:-1]))
        for listed in site.undrain_reasons
    )


def _why_not_passed(record: NodeRecord | None, site: HealthSettings, since: float) -> str:
    passed = [at for at in record.passed if at >= since] if record else []
    if len(passed) < 2 or passed[-1] - passed[0] < site.undrain_gap_seconds:
        return f"has passed one health check; check again after {format_duration(site.undrain_gap_seconds)}"
    return ""


def _why_not_free(snapshot: NodeSnapshot, site: HealthSettings) -> str:
    if snapshot.processes is None:
        return "the list of processes could not be read"
    blocking = [
        process
        for process in snapshot.user_processes(site.user_uid_min)
        if process.uid != snapshot.uid or process.age_s >= MAX_OWN_PROCESS_AGE_S
    ]
    if not blocking:
        return ""
    names = ", ".join(map(str, blocking[:MAX_NAMED_PROCESSES]))
    return f"{len(blocking)} user process{'es' * (len(blocking) != 1)}: {names}"


def _render_first_result(verdict: Verdict) -> str:
    result = next(iter(verdict.evidence or verdict.results), None)
    return f"{result.check}: {result.evidence}" if result else "nothing is known"
