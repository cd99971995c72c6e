"""A memory module that failed is missing from the total."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def memory(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    wanted = check_input.site.memory_gib * 2**20 or (check_input.prior.memory_kb or 0)
    if snapshot.memory_kb is None:
        yield CheckResult(check="memory", severity=Severity.UNKNOWN, evidence="/proc/meminfo cannot be read")
    elif snapshot.memory_kb < 0.98 * wanted:
        yield CheckResult(check="memory", severity=Severity.DEGRADED, remedy="look for a failed memory module",
                     evidence=f"{snapshot.memory_kb / 2**20:.1f} GiB, {wanted / 2**20:.1f} before")  # fmt: skip
