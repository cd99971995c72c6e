"""The nodes of running trains: their states in Slurm, and the verdicts of the last `opsctl health`."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Severity
from opsctl.base.model import Node
from opsctl.base.nodesets import union
from opsctl.base.statements import Remedy, Statement, advise, state, type_now
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.state.site_dir import SiteDir
from opsctl.watchdogs.context import WatchContext, WatchedTrain

BAD = {
    **dict.fromkeys(("DOWN", "FAIL", "FAILING", "ERROR", "INVAL"), Severity.CRITICAL),
    **dict.fromkeys(("NOT_RESPONDING", "DRAIN", "DRAINED", "DRAINING"), Severity.WARNING),
}
"""Slurm's states of unhealthy nodes. A node in NOT_RESPONDING may only be busy; a dead node soon becomes DOWN."""
VERDICTS = {"faulty": Severity.CRITICAL, "degraded": Severity.WARNING}
_SIGNS = {"*": "NOT_RESPONDING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesObservation:
    train: str
    nodes: tuple[Node, ...] = ()
    missing: tuple[str, ...] = ()
    """Nodes of the job that Slurm does not list."""
    is_known: bool = True
    records: tuple[NodeRecord, ...] = ()
    """Results of the last health checks."""
    record_hours: float = 24
    """Older records are ignored."""


class NodeHealth:
    name: ClassVar[str] = "node_health"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> NodesObservation:
        if context.nodes is None:
            return NodesObservation(train=target.name, is_known=False)
        mine = union(job.nodes for job in (target.snapshot.active if target.snapshot else ()))
        named = {node.name: node for node in context.nodes}
        history = NodeHistory(site=SiteDir(context.site_dir), clock=context.clock)
        return NodesObservation(
            train=target.name,
            records=tuple(history.read(name) for name in mine),
            record_hours=context.site.health.xid_hours,
            nodes=tuple(named[name] for name in mine if name in named),
            missing=tuple(name for name in mine if name not in named),
        )

    def judge(self, observation: NodesObservation, now: datetime) -> list[Finding]:
        key = f"{self.name}/{observation.train}"
        if not observation.is_known:
            says = state("nodes.not_reported", train=observation.train)
            return [Finding(key=key, severity=Severity.UNKNOWN, says=says, train=observation.train)]
        records = {
            record.node: record for record in observation.records if _is_recent(record, now, observation.record_hours)
        }
        bad = [
            finding
            for node in observation.nodes
            if (finding := judge_node(observation.train, node, records.get(node.name)))
        ]
        severity = Severity.UNKNOWN if observation.missing else Severity.OK
        says = state("nodes.counted", train=observation.train, nodes=len(observation.nodes), unhealthy=len(bad))
        if observation.missing:
            says = state("nodes.not_listed", train=observation.train, nodes=",".join(observation.missing[:5]))
        return [Finding(key=key, severity=severity, says=says, train=observation.train), *bad]


def judge_node(train: str, node: Node, record: NodeRecord | None) -> Finding | None:
    """Return the finding of an unhealthy node under `train`; None for a healthy one."""
    severity = worst_severity(node.state)
    verdict = VERDICTS.get(record.health, Severity.OK) if record else Severity.OK
    if severity is Severity.OK and verdict is Severity.OK:
        return None
    says = state("nodes.bad_state", node=node.name, state=node.state, train=train, reason=node.reason)
    if record and severity is Severity.OK:
        first = record.evidence[0] if record.evidence else ""
        says = state("nodes.bad_health", node=node.name, health=record.health, train=train, evidence=first)
    return Finding(
        key=f"node_health/{train}/{node.name}",
        severity=Severity.CRITICAL if Severity.CRITICAL in {severity, verdict} else Severity.WARNING,
        says=says,
        train=train,
        node=node.name,
        evidence=record.evidence if record and verdict is not Severity.OK else (),
        fix=advise(
            "remedy.bad_node",
            ("opsctl", "health", node.name),
            ("opsctl", "release", train, "--exclude", node.name),
            train=train,
        ),
    )


def judge_left_node(context: WatchContext, finding: Finding) -> list[Finding]:
    """Return the finding of a node that the train of an open `finding` has left; nothing if the state is unknown.

    A node that is still bad keeps its alert, as a warning: no train waits for the node.
    """
    if context.nodes is None:
        return []
    name = finding.key.rpartition("/")[2]
    node = next((node for node in context.nodes if node.name == name), None)
    if node is None:
        return [end_finding(finding, state("nodes.gone", node=name))]
    history = NodeHistory(site=SiteDir(context.site_dir), clock=context.clock)
    record = history.read(name)
    recent = record if _is_recent(record, context.now, context.site.health.xid_hours) else None
    if judge_node(finding.train, node, recent) is None:
        return [end_finding(finding, state("nodes.again", node=name, state=node.state))]
    word = node.state if worst_severity(node.state) is not Severity.OK or recent is None else recent.health
    says = state("nodes.left", node=name, state=word, reason=node.reason, train=finding.train)
    return [replace(finding, severity=Severity.WARNING, says=says, fix=type_now(("opsctl", "health", name)))]


def end_finding(finding: Finding, says: Statement) -> Finding:
    """Return the finding that is over: `says` tells why."""
    return replace(finding, severity=Severity.OK, says=says, details=(), evidence=(), fix=Remedy())


def _is_recent(record: NodeRecord, now: datetime, hours: float) -> bool:
    return record.at is not None and now.timestamp() - record.at <= hours * 3600


def is_node_alert(key: str) -> bool:
    return key.startswith("node_health/") and key.count("/") == 2


def worst_severity(state: str) -> Severity:
    """Return the severity of a state with flags, such as `MIXED+DRAIN` or `ALLOCATED*`."""
    words = [_SIGNS.get(word, word) for word in re.findall(r"[A-Z_]+|\*", state.upper())]
    severities = [BAD[word] for word in words if word in BAD]
    if Severity.CRITICAL in severities:
        return Severity.CRITICAL
    return severities[0] if severities else Severity.OK
