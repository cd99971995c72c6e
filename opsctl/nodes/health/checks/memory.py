"""Check the amount of host memory: a failed memory module is missing from the total.

The expected amount is that of the settings, of the node's history, or of most nodes of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.base.units import format_size
from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity
from opsctl.nodes.health.usual_hardware import MEMORY

MIN_SHARE = 0.98
KIB_PER_GIB = 2**20
BYTES_PER_KIB = 1024


def memory(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    expected_kb = check_input.site.memory_gib * KIB_PER_GIB or max(
        check_input.prior.memory_kb or 0, check_input.usual.values.get(MEMORY, 0)
    )
    if snapshot.memory_kb is None:
        yield CheckResult(check="memory", severity=Severity.UNKNOWN, evidence="/proc/meminfo cannot be read")
    elif snapshot.memory_kb < MIN_SHARE * expected_kb:
        sizes = [format_size(size_kb * BYTES_PER_KIB) for size_kb in (snapshot.memory_kb, expected_kb)]
        text = f"{sizes[0]} of memory, expected {sizes[1]}"
        yield CheckResult(
            check="memory", severity=Severity.DEGRADED, evidence=text, remedy="check for a failed memory module"
        )
