"""What all checks together make of a node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, Health, NodeSnapshot, Severity, Verdict


def judge(seen: NodeSnapshot, given: CheckInput) -> Verdict:
    """Faulty or degraded by evidence alone; healthy only if every check that must know could look."""
    results = tuple(_results(seen, given))
    return Verdict(node=seen.node, health=_health(results, seen, given), results=results, at=seen.at, by=seen.by)


def _results(seen: NodeSnapshot, given: CheckInput) -> Iterable[CheckResult]:
    if seen.problem:
        yield CheckResult(
            check="reach", severity=Severity.UNKNOWN, evidence=seen.problem, remedy="opsctl exec -w NODE uptime"
        )
    if seen.sections:
        for check in CHECKS.values():
            yield from check(seen, given)


def _health(results: Sequence[CheckResult], seen: NodeSnapshot, given: CheckInput) -> Health:
    severities = {each.severity for each in results}
    if Severity.FAULTY in severities:
        return Health.FAULTY
    if Severity.DEGRADED in severities:
        return Health.DEGRADED
    blind = [
        each for each in results if each.severity is Severity.UNKNOWN and each.check not in given.site.may_be_unknown
    ]
    return Health.UNKNOWN if blind or seen.problem else Health.HEALTHY


def with_common(given: CheckInput, snapshots: Iterable[NodeSnapshot]) -> CheckInput:
    """With the driver, the kernel and the libraries of most of these nodes; nothing where two are as frequent, for then
    none is odd."""
    seen = list(snapshots)
    told = [each.libraries for each in seen if each.libraries]
    return replace(
        given, driver=_most(each.smi.driver for each in seen if each.smi),
        kernel_version=_most(each.kernel_version for each in seen),
        libraries={name: _most(each.get(name, NONE) for each in told) for name in sorted({*chain(*told)})},
    )  # fmt: skip


def _most(words: Iterable[str]) -> str:
    found = Counter(word for word in words if word).most_common(2)
    if not found or (len(found) > 1 and found[0][1] == found[1][1]):
        return ""
    return found[0][0]
