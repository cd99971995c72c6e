"""Check that GPUs behind NVSwitches are registered with the fabric manager.

Without registration CUDA starts no program on the GPU (NVIDIA, Fabric Manager User Guide). The driver reports state and
status of every GPU. The state `In Progress` and the service are only notes: both differ between driver versions.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

REMEDY = "systemctl restart nvidia-fabricmanager; the version of the fabric manager must be that of the driver"
NOT_STARTED = frozenset({"not started", "not supported"})


def fabric(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    failed: dict[str, list[str]] = {}
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        state, status = (gpu.fabric_state or "").lower(), (gpu.fabric_status or "").lower()
        if state == "completed" and status not in {"", "success"}:
            failed.setdefault(f"registration failed: {gpu.fabric_status}", []).append(gpu.uuid)
        elif state and state != "completed" and state not in NOT_STARTED:
            failed.setdefault(f"registration: {gpu.fabric_state}", []).append(gpu.uuid)
    for text, uuids in failed.items():
        is_failure = text.startswith("registration failed")
        yield CheckResult(
            check="fabric",
            severity=Severity.FAULTY if is_failure else Severity.NOTE,
            evidence=f"{text} on {len(uuids)} GPUs",
            gpu=uuids[0] if len(uuids) == 1 else "",
            remedy=REMEDY,
        )
    hardware = snapshot.hardware
    if hardware and hardware.nvswitches and hardware.fabric_service not in {"", "active"}:
        text = f"{hardware.nvswitches} NVSwitches, and the service nvidia-fabricmanager is {hardware.fabric_service}"
        yield CheckResult(check="fabric", severity=Severity.NOTE, evidence=text, remedy=REMEDY)
