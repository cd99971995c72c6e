"""Check that nvidia-smi or amd-smi answers, and that all expected GPUs are present."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

EVIDENCE = {8: "a power cable is not attached", 10: "the kernel saw an interrupt problem", 14: "the infoROM is corrupt",
            15: "a GPU has fallen off the bus"}  # fmt: skip
"""Exit codes of nvidia-smi that name a hardware fault. Others name drivers, rights or libraries."""
LOST = ("GPU is lost", "fallen off the bus")


def gpus(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    tool, section = snapshot.gpu_tool
    expected = check_input.site.gpus_per_node or len(check_input.prior.uuids)
    code, words = section.code, f"{section.err} {snapshot.smi.messages if snapshot.smi else ''}"
    if tool == "nvidia-smi" and (code in EVIDENCE or (code and any(lost in words for lost in LOST))):
        meaning = EVIDENCE.get(code or 0, "a GPU is lost")
        yield CheckResult(
            check="gpus",
            severity=Severity.FAULTY,
            remedy="reboot the node; replace the card if it stays",
            evidence=f"nvidia-smi exit code {code}: {meaning}: {' '.join(words.split())[:120]}",
        )
    elif snapshot.smi is not None and code == 0:
        yield from _count(snapshot, check_input, expected)
    elif code == 127 and not expected and snapshot.on_bus == 0:
        return  # a node without GPUs
    else:
        why = section.why or "printed something that cannot be read"
        yield CheckResult(check="gpus", severity=Severity.UNKNOWN, evidence=f"{tool} {why}",
                     remedy=f"is the driver loaded there?  opsctl exec -w NODE {tool}")  # fmt: skip


def _count(snapshot: NodeSnapshot, check_input: CheckInput, expected: int) -> Iterator[CheckResult]:
    assert snapshot.smi is not None, "the caller checks"
    uuids = {gpu.uuid for gpu in snapshot.smi.gpus if gpu.uuid}
    missing = [uuid for uuid in check_input.prior.uuids if uuid not in uuids]
    wanted = max(expected, snapshot.smi.attached or 0)
    if len(snapshot.smi.gpus) < wanted:
        where = f"; missing: {', '.join(missing[:4])}" if missing else ""
        text = f"{len(snapshot.smi.gpus)} of {wanted} GPUs answer{where}"
        if snapshot.in_job and (snapshot.on_bus is None or snapshot.on_bus >= wanted):
            text += "; this job may see only its own GPUs"
            yield CheckResult(
                check="gpus", severity=Severity.UNKNOWN, evidence=text, remedy="check again when the node is idle"
            )
        else:
            yield CheckResult(check="gpus", severity=Severity.FAULTY, evidence=text, remedy="reboot the node")
    elif len(uuids) < len(snapshot.smi.gpus):
        text = f"{len(snapshot.smi.gpus) - len(uuids)} GPUs report no UUID"
        yield CheckResult(check="gpus", severity=Severity.UNKNOWN, evidence=text, remedy="read the kernel log")
    elif missing:
        yield CheckResult(check="gpus", severity=Severity.NOTE, evidence=f"{len(missing)} GPUs differ from before")
    for gpu in snapshot.smi.gpus:
        text = check_input.lemons.get(gpu.uuid, "") or (check_input.lemons.get(gpu.serial, "") if gpu.serial else "")
        if text:
            yield CheckResult(check="gpus", severity=Severity.NOTE, gpu=gpu.uuid, evidence=f"a known flaky GPU: {text}",
                         remedy="return the node and name the GPU")  # fmt: skip
