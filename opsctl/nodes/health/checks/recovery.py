"""Check the recovery action that the driver requests for a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, NodeSnapshot, Severity

ACTIONS = {
    "none": None,
    "reset": Severity.FAULTY,
    "gpu reset": Severity.FAULTY,
    "gpu reset required": Severity.FAULTY,
    "reboot": Severity.FAULTY,
    "node reboot": Severity.FAULTY,
    "node reboot required": Severity.FAULTY,
    "drain and reset": Severity.DEGRADED,
    "drain p2p": Severity.DEGRADED,
}
"""Severity by the words of several nvidia-smi versions for NVML's GPU recovery action."""


def recovery(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if gpu.maker != "nvidia":
            continue
        action = (gpu.recovery or "").lower()
        severity = ACTIONS.get(action)
        if severity is not None:
            text = f"the driver requests: {gpu.recovery}"
            yield _result(gpu, severity, text, "carry out the requested action")
        elif gpu.reset_required:
            yield _result(gpu, Severity.FAULTY, "the driver requests a reset", "reset the GPU")
        elif action not in ACTIONS and gpu.reset_required is None:
            text = f"unknown recovery action {gpu.recovery!r}" if action else "the driver reports no recovery action"
            yield _result(gpu, Severity.UNKNOWN, text)


def _result(gpu: Gpu, severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="recovery", severity=severity, gpu=gpu.uuid, evidence=evidence, remedy=remedy)
