"""Shared memory: there, large enough, and not full of what earlier jobs left."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def shm(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if snapshot.shm_kb is None or snapshot.shm_percent is None:
        yield CheckResult(
            check="shm", severity=Severity.UNKNOWN, evidence=f"df {snapshot.section('shm').why or 'cannot be read'}"
        )
        return
    gib = snapshot.shm_kb / 2**20
    if gib < check_input.site.shm_gib:
        yield CheckResult(check="shm", severity=Severity.DEGRADED, remedy="mount it larger",
                     evidence=f"{gib:.1f} GiB of shared memory, {check_input.site.shm_gib:g} wanted")  # fmt: skip
    if snapshot.shm_percent > check_input.site.shm_percent:
        # Under a job it is the job's to fill.
        severity = Severity.DEGRADED if check_input.busy is False else Severity.NOTE
        yield CheckResult(check="shm", severity=severity, remedy="remove what earlier jobs left there",
                     evidence=f"shared memory is {snapshot.shm_percent} % full")  # fmt: skip
