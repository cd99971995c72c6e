"""Are all the cards there that the node had before, and does nvidia-smi or amd-smi answer?"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

EVIDENCE = {8: "a power cable is not attached", 10: "the kernel saw an interrupt problem", 14: "the infoROM is corrupt",
            15: "a GPU has fallen off the bus"}  # fmt: skip
"""Exit codes of nvidia-smi that speak of the hardware. All others speak of drivers, rights and libraries."""
LOST = ("GPU is lost", "fallen off the bus")


def gpus(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    tool, section = seen.gpu_tool
    expected = given.site.gpus_per_node or len(given.prior.uuids)
    code, words = section.code, f"{section.err} {seen.smi.said if seen.smi else ''}"
    if tool == "nvidia-smi" and (code in EVIDENCE or (code and any(lost in words for lost in LOST))):
        meaning = EVIDENCE.get(code or 0, "a GPU is lost")
        yield CheckResult(
            check="gpus",
            severity=Severity.FAULTY,
            remedy="reboot the node; replace the card if it stays",
            evidence=f"nvidia-smi exit code {code}: {meaning}: {' '.join(words.split())[:120]}",
        )
    elif seen.smi is not None and code == 0:
        yield from _count(seen, given, expected)
    elif code == 127 and not expected and seen.on_bus == 0:
        return  # a node without GPUs
    else:
        why = section.why or "printed something that cannot be read"
        yield CheckResult(check="gpus", severity=Severity.UNKNOWN, evidence=f"{tool} {why}",
                     remedy=f"is the driver loaded there?  opsctl exec -w NODE {tool}")  # fmt: skip


def _count(seen: NodeSnapshot, given: CheckInput, expected: int) -> Iterator[CheckResult]:
    assert seen.smi is not None, "asked for only then"
    found = {gpu.uuid for gpu in seen.smi.gpus if gpu.uuid}
    missing = [uuid for uuid in given.prior.uuids if uuid not in found]
    wanted = max(expected, seen.smi.attached or 0)
    if len(seen.smi.gpus) < wanted:
        where = f"; missing: {', '.join(missing[:4])}" if missing else ""
        said = f"{len(seen.smi.gpus)} of {wanted} GPUs answer{where}"
        if seen.in_job and (seen.on_bus is None or seen.on_bus >= wanted):
            said += "; but this job may only see its own"
            yield CheckResult(
                check="gpus", severity=Severity.UNKNOWN, evidence=said, remedy="look when the node is idle"
            )
        else:
            yield CheckResult(check="gpus", severity=Severity.FAULTY, evidence=said, remedy="reboot the node")
    elif len(found) < len(seen.smi.gpus):
        said = f"{len(seen.smi.gpus) - len(found)} cards do not say who they are"
        yield CheckResult(check="gpus", severity=Severity.UNKNOWN, evidence=said, remedy="look at the kernel log")
    elif missing:
        yield CheckResult(check="gpus", severity=Severity.NOTE, evidence=f"{len(missing)} cards are others than before")
    for gpu in seen.smi.gpus:
        said = given.lemons.get(gpu.uuid, "") or (given.lemons.get(gpu.serial, "") if gpu.serial else "")
        if said:
            yield CheckResult(check="gpus", severity=Severity.NOTE, gpu=gpu.uuid, evidence=f"a known lemon: {said}",
                         remedy="give the node back, and name the card")  # fmt: skip
