"""Check that nvidia-smi or amd-smi answers, and that all expected GPUs are present.

The expected number is that of the settings, of the node's history, or of most nodes of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity, Smi
from opsctl.nodes.health.usual_hardware import GPUS, ON_BUS

HARDWARE_EXIT_CODES = {
    8: "a power cable is not attached",
    10: "the kernel reported an interrupt problem",
    14: "the infoROM is corrupt",
    15: "a GPU has fallen off the bus",
}
"""Exit codes of nvidia-smi that name a hardware fault. Others name drivers, rights or libraries."""
LOST_GPU_MESSAGES = ("GPU is lost", "fallen off the bus")
MAX_MESSAGE_CHARS = 120
MAX_NAMED_GPUS = 4


def gpus(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    tool, section = snapshot.gpu_tool
    usual = check_input.usual.values
    learnt = max(len(check_input.prior.uuids), int(usual.get(GPUS, 0)))
    expected = check_input.site.gpus_per_node or learnt
    fault = _find_hardware_fault(snapshot)
    if fault:
        yield _result(Severity.FAULTY, fault, "reboot the node; replace the GPU if the fault remains")
    elif snapshot.smi is not None and section.code == 0:
        yield from _check_count(snapshot.smi, snapshot, check_input, expected)
        yield from _list_flaky_gpus(snapshot.smi, check_input)
    elif snapshot.on_bus is not None and snapshot.on_bus < usual.get(ON_BUS, 0):
        text = f"{snapshot.on_bus} GPUs on the bus, most nodes of this kind have {usual[ON_BUS]:g}"
        yield _result(Severity.FAULTY, text, "reboot the node; reseat the GPU if the fault remains")
    elif section.code == 127 and not expected and snapshot.on_bus == 0:
        return  # a node without GPUs
    else:
        why = section.why or "printed unreadable output"
        yield _result(Severity.UNKNOWN, f"{tool} {why}", f"check the driver: opsctl exec -w NODE {tool}")


def _find_hardware_fault(snapshot: NodeSnapshot) -> str:
    """Return the hardware fault that nvidia-smi reports; an empty string for none."""
    tool, section = snapshot.gpu_tool
    if tool != "nvidia-smi" or not section.code:
        return ""
    text = f"{section.err} {snapshot.smi.messages if snapshot.smi else ''}"
    if section.code not in HARDWARE_EXIT_CODES and not any(message in text for message in LOST_GPU_MESSAGES):
        return ""
    meaning = HARDWARE_EXIT_CODES.get(section.code, "a GPU is lost")
    return f"nvidia-smi exit code {section.code}: {meaning}: {' '.join(text.split())[:MAX_MESSAGE_CHARS]}"


def _check_count(smi: Smi, snapshot: NodeSnapshot, check_input: CheckInput, expected: int) -> Iterator[CheckResult]:
    uuids = {gpu.uuid for gpu in smi.gpus if gpu.uuid}
    missing = [uuid for uuid in check_input.prior.uuids if uuid not in uuids]
    required = max(expected, smi.attached or 0)
    if len(smi.gpus) < required:
        names = f"; missing: {', '.join(missing[:MAX_NAMED_GPUS])}" if missing else ""
        text = f"{len(smi.gpus)} of {required} GPUs answer{names}"
        if snapshot.in_job and (snapshot.on_bus is None or snapshot.on_bus >= required):
            text += "; this job may see only its own GPUs"
            yield _result(Severity.UNKNOWN, text, "check again when the node is idle")
        else:
            yield _result(Severity.FAULTY, text, "reboot the node")
    elif len(uuids) < len(smi.gpus):
        text = f"{len(smi.gpus) - len(uuids)} GPUs report no UUID"
        yield _result(Severity.UNKNOWN, text, "read the kernel log")
    elif missing:
        yield _result(Severity.NOTE, f"{len(missing)} GPUs differ from before")


def _list_flaky_gpus(smi: Smi, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in smi.gpus:
        by_serial = check_input.flaky_gpus.get(gpu.serial, "") if gpu.serial else ""
        summary = check_input.flaky_gpus.get(gpu.uuid, "") or by_serial
        if summary:
            remedy = "return the node and name the GPU"
            yield _result(Severity.NOTE, f"a known flaky GPU: {summary}", remedy, uuid=gpu.uuid)


def _result(severity: Severity, evidence: str, remedy: str = "", *, uuid: str = "") -> CheckResult:
    return CheckResult(check="gpus", severity=severity, gpu=uuid, evidence=evidence, remedy=remedy)
