"""Check shared memory (/dev/shm): large enough, and not full of files of earlier jobs."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.base.units import format_size
from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

BYTES_PER_KIB = 1024
BYTES_PER_GIB = 2**30


def shm(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    site = check_input.site
    if snapshot.shm_kb is None or snapshot.shm_percent is None:
        yield _result(Severity.UNKNOWN, f"df {snapshot.section('shm').why or 'cannot be read'}")
        return
    size_bytes, required_bytes = snapshot.shm_kb * BYTES_PER_KIB, site.shm_gib * BYTES_PER_GIB
    if size_bytes < required_bytes:
        text = f"{format_size(size_bytes)} of shared memory, required {format_size(required_bytes)}"
        yield _result(Severity.DEGRADED, text, "remount /dev/shm with a larger size")
    if snapshot.shm_percent > site.shm_percent:
        # A running job may fill shared memory.
        severity = Severity.DEGRADED if check_input.busy is False else Severity.NOTE
        text = f"shared memory is {snapshot.shm_percent} % full"
        yield _result(severity, text, "remove files of earlier jobs from /dev/shm")


def _result(severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="shm", severity=severity, evidence=evidence, remedy=remedy)
