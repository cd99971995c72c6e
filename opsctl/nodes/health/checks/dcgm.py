"""NVIDIA's own diagnostic, at the level that was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def dcgm(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    if "dcgm" not in snapshot.sections:
        return
    if snapshot.dcgm is None:
        why = snapshot.section("dcgm").why or "printed something that cannot be read"
        yield CheckResult(check="dcgm", severity=Severity.UNKNOWN, evidence=f"dcgmi diag {why}")
        return
    for test, result, text in snapshot.dcgm:
        if result == "fail":
            yield CheckResult(check="dcgm", severity=Severity.FAULTY, evidence=f"{test}: fail: {text}"[:200],
                         remedy="dcgmi diag -r 3; replace the card if it stays")  # fmt: skip
        elif result == "warn":
            yield CheckResult(check="dcgm", severity=Severity.NOTE, evidence=f"{test}: warn: {text}"[:200])
