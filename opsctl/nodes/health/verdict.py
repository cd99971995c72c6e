"""What all checks together make of a node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, Health, NodeSnapshot, Severity, Verdict


def judge(snapshot: NodeSnapshot, check_input: CheckInput) -> Verdict:
    """Faulty or degraded by evidence alone; healthy only if every check that must know could look."""
    results = tuple(_results(snapshot, check_input))
    return Verdict(
        node=snapshot.node,
        health=_health(results, snapshot, check_input),
        results=results,
        at=snapshot.at,
        by=snapshot.by,
    )


def _results(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterable[CheckResult]:
    if snapshot.problem:
        yield CheckResult(
            check="reach", severity=Severity.UNKNOWN, evidence=snapshot.problem, remedy="opsctl exec -w NODE uptime"
        )
    if snapshot.sections:
        for check in CHECKS.values():
            yield from check(snapshot, check_input)


def _health(results: Sequence[CheckResult], snapshot: NodeSnapshot, check_input: CheckInput) -> Health:
    severities = {result.severity for result in results}
    if Severity.FAULTY in severities:
        return Health.FAULTY
    if Severity.DEGRADED in severities:
        return Health.DEGRADED
    blind = [
        result
        for result in results
        if result.severity is Severity.UNKNOWN and result.check not in check_input.site.may_be_unknown
    ]
    return Health.UNKNOWN if blind or snapshot.problem else Health.HEALTHY


def with_common(check_input: CheckInput, snapshots: Iterable[NodeSnapshot]) -> CheckInput:
    """With the driver, the kernel and the libraries of most of these nodes; nothing where two are as frequent, for then
    none is odd."""
    node_snapshots = list(snapshots)
    told = [snapshot.libraries for snapshot in node_snapshots if snapshot.libraries]
    return replace(
        check_input, driver=_most(snapshot.smi.driver for snapshot in node_snapshots if snapshot.smi),
        kernel_version=_most(snapshot.kernel_version for snapshot in node_snapshots),
        libraries={name: _most(each.get(name, NONE) for each in told) for name in sorted({*chain(*told)})},
    )  # fmt: skip


def _most(words: Iterable[str]) -> str:
    found = Counter(word for word in words if word).most_common(2)
    if not found or (len(found) > 1 and found[0][1] == found[1][1]):
        return ""
    return found[0][0]
