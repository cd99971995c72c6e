"""Check settings that slow a node down: clock source and cpufreq governor. Always a note, never evidence.

The kernel leaves the TSC for hpet or acpi_pm when the TSC is unstable; every reading of the clock then takes a
microsecond (linux Documentation/timers/timekeeping.rst). A governor is wrong only in comparison: `cpu_governor`, or the
governor of most nodes of this check.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Hardware, NodeSnapshot, Severity

SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})


def host_settings(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    hardware = snapshot.hardware
    if hardware is None:
        text = f"/sys {snapshot.section('hardware').why or 'cannot be read'}"
        yield CheckResult(check="host_settings", severity=Severity.UNKNOWN, evidence=text)
        return
    if hardware.clocksource in SLOW_CLOCKS:
        text = f"clock source {hardware.clocksource}: reading the time is slow"
        yield _note(text, "read the kernel log for why the TSC is unstable; update the BIOS")
    yield from _check_governor(hardware, check_input)


def _check_governor(hardware: Hardware, check_input: CheckInput) -> Iterator[CheckResult]:
    expected = check_input.site.cpu_governor or check_input.governor
    others = {name: count for name, count in hardware.governors.items() if name != expected}
    if expected and others:
        names = ", ".join(f"{count} CPUs {name}" for name, count in sorted(others.items()))
        yield _note(f"cpufreq governor: {names}, expected {expected}", f"cpupower frequency-set -g {expected}")


def _note(evidence: str, remedy: str) -> CheckResult:
    return CheckResult(check="host_settings", severity=Severity.NOTE, evidence=evidence, remedy=remedy)
