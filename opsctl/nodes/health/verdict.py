"""Combine the results of all checks into a verdict on a node. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, CheckSeverity, Health, NodeSnapshot, Verdict


def judge(snapshot: NodeSnapshot, check_input: CheckInput) -> Verdict:
    """Judge a node: faulty or degraded by evidence only; healthy only if no required check is unknown."""
    results = tuple(_run_checks(snapshot, check_input))
    return Verdict(
        node=snapshot.node,
        health=_decide_health(results, snapshot, check_input),
        results=results,
        at=snapshot.at,
        by=snapshot.by,
        saw_gpus=bool(snapshot.smi and snapshot.smi.gpus),
    )


def _run_checks(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterable[CheckResult]:
    if snapshot.problem:
        command = f"opsctl exec -w {snapshot.node} uptime"
        yield CheckResult(CheckSeverity.UNKNOWN, snapshot.problem, command, check="reach")
    if snapshot.sections:
        for name, check in CHECKS.items():
            for result in check(snapshot, check_input):
                yield result if result.check else replace(result, check=name)


def _decide_health(results: Sequence[CheckResult], snapshot: NodeSnapshot, check_input: CheckInput) -> Health:
    severities = {result.severity for result in results}
    if CheckSeverity.FAULTY in severities:
        return Health.FAULTY
    if CheckSeverity.DEGRADED in severities:
        return Health.DEGRADED
    blind = [
        result
        for result in results
        if result.severity is CheckSeverity.UNKNOWN and result.check not in check_input.site.may_be_unknown
    ]
    return Health.UNKNOWN if blind or snapshot.problem else Health.HEALTHY


def add_usual_versions(check_input: CheckInput, snapshots: Iterable[NodeSnapshot]) -> CheckInput:
    """Return `check_input` with the most frequent driver, kernel and libraries of these nodes.

    A version is empty if two versions are the most frequent: then no node differs from most nodes.
    """
    node_snapshots = list(snapshots)
    library_sets = [snapshot.libraries for snapshot in node_snapshots if snapshot.libraries]
    names = sorted({*chain(*library_sets)})
    return replace(
        check_input,
        driver=_find_most_frequent(snapshot.smi.driver for snapshot in node_snapshots if snapshot.smi),
        kernel_version=_find_most_frequent(snapshot.kernel_version for snapshot in node_snapshots),
        governor=_find_most_frequent(
            max(snapshot.hardware.governors, key=snapshot.hardware.governors.__getitem__)
            for snapshot in node_snapshots
            if snapshot.hardware and snapshot.hardware.governors
        ),
        libraries={
            name: _find_most_frequent(libraries.get(name, NONE) for libraries in library_sets) for name in names
        },
    )


def _find_most_frequent(versions: Iterable[str]) -> str:
    """Return the most frequent version that is not empty; an empty string for a tie."""
    counts = Counter(version for version in versions if version).most_common(2)
    if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
        return ""
    return counts[0][0]
