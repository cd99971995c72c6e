"""What holds a card down: clock-event reasons, which are bits that come together."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def clocks(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if gpu.maker != "nvidia":
            continue
        if gpu.clocks is None:
            yield CheckResult(check="clocks", severity=Severity.UNKNOWN, gpu=gpu.uuid, evidence="no reasons: N/A")
            continue
        hard = sorted(gpu.clocks & {"hw_thermal_slowdown", "hw_power_brake_slowdown"})
        if hard:
            # Under load a card may be hot for a moment; an idle one has no excuse.
            is_idle = check_input.busy is False and gpu.use == 0
            yield CheckResult(
                check="clocks", severity=Severity.DEGRADED if is_idle else Severity.NOTE, gpu=gpu.uuid,
                evidence=f"slowed down by {', '.join(hard)}{' though idle' if is_idle else ''}",
                remedy="look at cooling and power",
            )  # fmt: skip
