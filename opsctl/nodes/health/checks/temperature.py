"""How hot a card is, and whether its power was capped."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def temperature(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():

        def result(severity: Severity, evidence: str, uuid: str = gpu.uuid) -> CheckResult:
            return CheckResult(check="temperature", severity=severity, gpu=uuid, evidence=evidence,
                          remedy="look at cooling and power")  # fmt: skip

        if gpu.temperature is None:
            yield result(Severity.UNKNOWN, "temperature: N/A")
        elif gpu.slow_at is not None and gpu.temperature >= gpu.slow_at:
            yield result(Severity.DEGRADED, f"{gpu.temperature} C, slows down at {gpu.slow_at} C")
        elif gpu.margin is not None and gpu.slow_margin is not None and gpu.margin <= gpu.slow_margin:
            yield result(Severity.DEGRADED, f"{gpu.temperature} C, {gpu.margin} C from its limit")
        if gpu.power_limit and gpu.default_power_limit and gpu.power_limit < 0.98 * gpu.default_power_limit:
            yield result(Severity.NOTE, f"capped at {gpu.power_limit:g} W, {gpu.default_power_limit:g} W by default")
