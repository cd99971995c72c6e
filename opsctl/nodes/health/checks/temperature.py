"""Check the temperature and the power limit of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, NodeSnapshot, Severity

MIN_SHARE_OF_POWER = 0.98


def temperature(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        yield from _check_temperature(gpu)
        limit_w, default_w = gpu.power_limit_w, gpu.default_power_limit_w
        if limit_w and default_w and limit_w < MIN_SHARE_OF_POWER * default_w:
            yield _result(gpu, Severity.NOTE, f"capped at {limit_w:g} W, {default_w:g} W by default")


def _check_temperature(gpu: Gpu) -> Iterator[CheckResult]:
    if gpu.temperature_c is None:
        yield _result(gpu, Severity.UNKNOWN, "temperature: N/A")
    elif gpu.slowdown_c is not None and gpu.temperature_c >= gpu.slowdown_c:
        yield _result(gpu, Severity.DEGRADED, f"{gpu.temperature_c} C, slows down at {gpu.slowdown_c} C")
    elif gpu.margin_c is not None and gpu.slowdown_margin_c is not None and gpu.margin_c <= gpu.slowdown_margin_c:
        yield _result(gpu, Severity.DEGRADED, f"{gpu.temperature_c} C, {gpu.margin_c} C from its limit")


def _result(gpu: Gpu, severity: Severity, evidence: str) -> CheckResult:
    return CheckResult(
        check="temperature", severity=severity, gpu=gpu.uuid, evidence=evidence, remedy="check cooling and power"
    )
