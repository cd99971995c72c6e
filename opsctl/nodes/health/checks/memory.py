"""Check the amount of host memory: a failed memory module is missing from the total."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

MIN_SHARE = 0.98
KIB_PER_GIB = 2**20


def memory(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    expected_kb = check_input.site.memory_gib * KIB_PER_GIB or (check_input.prior.memory_kb or 0)
    if snapshot.memory_kb is None:
        yield CheckResult(check="memory", severity=Severity.UNKNOWN, evidence="/proc/meminfo cannot be read")
    elif snapshot.memory_kb < MIN_SHARE * expected_kb:
        text = f"{snapshot.memory_kb / KIB_PER_GIB:.1f} GiB of memory, expected {expected_kb / KIB_PER_GIB:.1f} GiB"
        yield CheckResult(
            check="memory", severity=Severity.DEGRADED, evidence=text, remedy="check for a failed memory module"
        )
