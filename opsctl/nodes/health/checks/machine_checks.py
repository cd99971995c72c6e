"""Check the memory errors that the kernel's EDAC driver has counted since boot. The kernel log has its own rows.

An uncorrectable error fails the node: mcelog.conf reports from `uc-error-threshold = 1 / 24h` on. Corrected errors are
a note above `memory_corrected_per_day`, by default mcelog's `ce-error-threshold = 10 / 24h`.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

SECONDS_PER_DAY = 86400
REMEDY = "replace the memory module"


def machine_checks(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    hardware = snapshot.hardware
    if hardware is None or not hardware.corrected_memory:
        if snapshot.kernel is None:
            text = "neither the kernel log nor an EDAC driver can be read: memory errors stay unnoticed"
            yield _result(Severity.UNKNOWN, text)
        return
    # Errors before the node was put back into service are no evidence; counters do not tell when they rose.
    severity = Severity.NOTE if _is_cleared_since_boot(snapshot, check_input) else Severity.FAULTY
    for place, count in hardware.uncorrected_memory.items():
        if count:
            yield _result(severity, f"{count} uncorrectable memory errors since boot on {place}", REMEDY)
    days = max(1.0, (snapshot.uptime_s or 0) / SECONDS_PER_DAY)
    for place, count in hardware.corrected_memory.items():
        if count > check_input.site.memory_corrected_per_day * days:
            text = f"{count} corrected memory errors in {days:.0f} days on {place}"
            yield _result(Severity.NOTE, text, REMEDY + " if the errors go on")


def _is_cleared_since_boot(snapshot: NodeSnapshot, check_input: CheckInput) -> bool:
    cleared = check_input.prior.cleared
    if cleared is None or snapshot.uptime_s is None:
        return False
    return (snapshot.at - cleared).total_seconds() < snapshot.uptime_s


def _result(severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="machine_checks", severity=severity, evidence=evidence, remedy=remedy)
