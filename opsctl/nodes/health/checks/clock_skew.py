"""How far the clock is off: logs and time-outs lie when it is."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def clock_skew(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    def result(severity: Severity, evidence: str) -> CheckResult:
        return CheckResult(check="clock_skew", severity=severity, evidence=evidence, remedy="look at the time service")

    off = snapshot.clock_offset
    if off is not None and abs(off) > check_input.site.clock_fail_seconds:
        yield result(Severity.DEGRADED, f"its own time service says that it is {off:+.3f} s off")
    elif off is not None and abs(off) > check_input.site.clock_warn_seconds:
        yield result(Severity.NOTE, f"its own time service says that it is {off:+.3f} s off")
    elif off is None:
        yield result(Severity.UNKNOWN, "chronyc does not say how far it is off")
    # Ours may be the wrong one.
    if snapshot.skew is not None and abs(snapshot.skew) - snapshot.skew_error > check_input.site.clock_fail_seconds:
        yield result(
            Severity.NOTE, f"{snapshot.skew:+.1f} s against the clock here, give or take {snapshot.skew_error:.1f} s"
        )
