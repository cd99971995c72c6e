"""Check Lustre's own health check (/sys/fs/lustre/health_check). Evictions are rows of kernel_log.toml.

The file says `healthy`, `NOT HEALTHY`, or `LBUG` after an internal error, which only a reboot ends (Lustre Operations
Manual). NVIDIA's resiliency extension refuses a node that is not healthy.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

HEALTHY = "healthy"


def lustre(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    state = snapshot.hardware.lustre if snapshot.hardware else ""
    if not state or state == HEALTHY:
        return
    is_stopped = "LBUG" in state
    yield CheckResult(
        check="lustre",
        severity=Severity.FAULTY if is_stopped else Severity.DEGRADED,
        evidence=f"Lustre reports: {state}",
        remedy="reboot the node" if is_stopped else "read the kernel log; check the network to the file servers",
    )
