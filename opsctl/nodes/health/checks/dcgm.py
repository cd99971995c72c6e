"""Check the results of NVIDIA's diagnostic (DCGM), if requested."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

MAX_EVIDENCE_CHARS = 200


def dcgm(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    if "dcgm" not in snapshot.sections:
        return
    if snapshot.dcgm is None:
        why = snapshot.section("dcgm").why or "printed unreadable output"
        yield CheckResult(check="dcgm", severity=Severity.UNKNOWN, evidence=f"dcgmi diag {why}")
        return
    for test, result, text in snapshot.dcgm:
        evidence = f"{test}: {result}: {text}"[:MAX_EVIDENCE_CHARS]
        if result == "fail":
            remedy = "run dcgmi diag -r 3; replace the GPU if the failure remains"
            yield CheckResult(check="dcgm", severity=Severity.FAULTY, evidence=evidence, remedy=remedy)
        elif result == "warn":
            yield CheckResult(check="dcgm", severity=Severity.NOTE, evidence=evidence)
