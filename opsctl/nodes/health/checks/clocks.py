"""Check the clock event reasons: a GPU that is idle and too hot, or short of power, is degraded."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

SLOWDOWNS = frozenset({"hw_thermal_slowdown", "hw_power_brake_slowdown"})


def clocks(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if gpu.maker != "nvidia":
            continue
        if gpu.clocks is None:
            yield CheckResult(
                check="clocks", severity=Severity.UNKNOWN, gpu=gpu.uuid, evidence="clock event reasons: N/A"
            )
            continue
        slowdowns = sorted(gpu.clocks & SLOWDOWNS)
        if slowdowns:
            # A GPU under load may be hot for a moment; an idle GPU may not.
            is_idle = check_input.busy is False and gpu.use_percent == 0
            yield CheckResult(
                check="clocks",
                severity=Severity.DEGRADED if is_idle else Severity.NOTE,
                gpu=gpu.uuid,
                evidence=f"slowed down by {', '.join(slowdowns)}{' although idle' if is_idle else ''}",
                remedy="check cooling and power",
            )
