"""Check NVMe disks: the driver's state and the SMART log, which only root may read. The kernel log has its own rows.

The bits of the critical warning are those of the NVM Express Base Specification, log page 02h: spare blocks below the
disk's own threshold and a degraded device are evidence, a read-only disk fails the node; a hot disk is a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, DiskLog, NodeSnapshot, Severity

WARNINGS = {
    0x01: (Severity.DEGRADED, "has too few spare blocks"),
    0x02: (Severity.NOTE, "is too hot or too cold"),
    0x04: (Severity.DEGRADED, "is less reliable: many media or internal errors"),
    0x08: (Severity.FAULTY, "has become read-only"),
    0x10: (Severity.NOTE, "has lost the backup of its volatile memory"),
}
MAX_USED_PERCENT = 100
"""A disk beyond its rated endurance may work on: only a note."""
REMEDY = "replace the disk"


def nvme(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:  # noqa: ARG001 (every check has the same form)
    disks = snapshot.hardware.disks if snapshot.hardware else {}
    for name, state in disks.items():
        if state == "dead":
            yield _result(Severity.FAULTY, f"{name} is dead", REMEDY)
        elif state != "live":
            yield _result(Severity.NOTE, f"{name} is {state}")
    for name, log in snapshot.disk_logs.items():
        yield from _check_log(name, log)
    missing = sorted(set(disks) - set(snapshot.disk_logs))
    if missing:
        why = snapshot.section("nvme").why or "printed no SMART log"
        yield _result(Severity.UNKNOWN, f"SMART log of {', '.join(missing)}: {why}", "install nvme-cli; run as root")


def _check_log(name: str, log: DiskLog) -> Iterator[CheckResult]:
    for bit, (severity, text) in WARNINGS.items():
        if log.critical_warning & bit:
            yield _result(severity, f"{name} {text} (critical warning {log.critical_warning:#04x})", REMEDY)
    if (log.used_percent or 0) >= MAX_USED_PERCENT:
        yield _result(Severity.NOTE, f"{name} has used {log.used_percent} % of its rated endurance", REMEDY)
    if log.media_errors:
        yield _result(Severity.NOTE, f"{name} counts {log.media_errors} media errors")


def _result(severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="nvme", severity=severity, evidence=evidence, remedy=remedy)
