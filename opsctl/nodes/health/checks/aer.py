"""Check the PCIe errors (AER) that the kernel has counted since boot. The kernel log has its own rows.

Totals are only a note, and corrected errors none: a reset of the card also counts, and the hardware repeats a corrected
transfer. gcm calls corrected errors ok and others a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def aer(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    for device, counts in (snapshot.hardware.pcie_errors if snapshot.hardware else {}).items():
        uncorrected = [f"{counts[kind]} {kind}" for kind in ("fatal", "nonfatal") if counts.get(kind)]
        if uncorrected:
            text = f"{' and '.join(uncorrected)} PCIe errors since boot on {device}"
            yield CheckResult(check="aer", severity=Severity.NOTE, evidence=text, remedy="watch the card")
