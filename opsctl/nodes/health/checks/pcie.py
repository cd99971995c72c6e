"""Check the PCIe link of GPUs under load. An idle GPU narrows its link to save power."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

MIN_USE_PERCENT = 10
"""A GPU that is used less counts as idle."""


def pcie(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    for gpu in snapshot.smi.gpus if snapshot.smi else ():
        is_loaded = (gpu.use_percent or 0) >= MIN_USE_PERCENT
        if is_loaded and gpu.pcie_lanes and gpu.max_pcie_lanes and gpu.pcie_lanes < gpu.max_pcie_lanes:
            yield CheckResult(
                check="pcie",
                severity=Severity.DEGRADED,
                gpu=gpu.uuid,
                evidence=f"{gpu.pcie_lanes} of {gpu.max_pcie_lanes} lanes under load",
                remedy="reseat the GPU",
            )
        before = check_input.prior.replays.get(gpu.uuid)
        if before is not None and gpu.replays is not None and gpu.replays > before:
            text = f"{gpu.replays - before} new PCIe replays since the last check"
            yield CheckResult(check="pcie", severity=Severity.NOTE, gpu=gpu.uuid, evidence=text)
