"""The way to a card. An idle card narrows it to save power, so only a busy one says something."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

BUSY = 10
"""Percent."""


def pcie(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        if (gpu.use or 0) >= BUSY and gpu.width and gpu.max_width and gpu.width < gpu.max_width:
            yield CheckResult(check="pcie", severity=Severity.DEGRADED, gpu=gpu.uuid, remedy="reseat the card",
                         evidence=f"{gpu.width} of {gpu.max_width} lanes under load")  # fmt: skip
        before = check_input.prior.replays.get(gpu.uuid)
        if before is not None and gpu.replays is not None and gpu.replays > before:
            yield CheckResult(check="pcie", severity=Severity.NOTE, gpu=gpu.uuid,
                         evidence=f"{gpu.replays - before} new PCIe replays since the last look")  # fmt: skip
