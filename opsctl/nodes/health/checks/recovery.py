"""What the driver itself says that a card needs: the one field that replaces most others."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

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
"""nvidia-smi's words, of several versions, for NVML's GPU recovery action."""


def recovery(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if gpu.maker != "nvidia":
            continue
        word = (gpu.recovery or "").lower()
        severity = ACTIONS.get(word)
        if severity is not None:
            text = f"the driver asks for: {gpu.recovery}"
            yield CheckResult(check="recovery", severity=severity, gpu=gpu.uuid, evidence=text, remedy="do as it asks")
        elif gpu.reset_required:
            yield CheckResult(check="recovery", severity=Severity.FAULTY, gpu=gpu.uuid, remedy="reset the GPU",
                         evidence="the driver asks for a reset")  # fmt: skip
        elif word not in ACTIONS and gpu.reset_required is None:
            text = f"a word that is not known: {gpu.recovery!r}" if word else "this driver does not say"
            yield CheckResult(check="recovery", severity=Severity.UNKNOWN, gpu=gpu.uuid, evidence=text)
