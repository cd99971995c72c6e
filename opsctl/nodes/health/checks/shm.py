"""Shared memory: there, large enough, and not full of what earlier jobs left."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def shm(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    if seen.shm_kb is None or seen.shm_percent is None:
        yield CheckResult(
            check="shm", severity=Severity.UNKNOWN, evidence=f"df {seen.section('shm').why or 'cannot be read'}"
        )
        return
    gib = seen.shm_kb / 2**20
    if gib < given.site.shm_gib:
        yield CheckResult(check="shm", severity=Severity.DEGRADED, remedy="mount it larger",
                     evidence=f"{gib:.1f} GiB of shared memory, {given.site.shm_gib:g} wanted")  # fmt: skip
    if seen.shm_percent > given.site.shm_percent:
        # Under a job it is the job's to fill.
        severity = Severity.DEGRADED if given.busy is False else Severity.NOTE
        yield CheckResult(check="shm", severity=severity, remedy="remove what earlier jobs left there",
                     evidence=f"shared memory is {seen.shm_percent} % full")  # fmt: skip
