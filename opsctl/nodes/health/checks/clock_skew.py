"""How far the clock is off: logs and time-outs lie when it is."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def clock_skew(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    def result(severity: Severity, evidence: str) -> CheckResult:
        return CheckResult(check="clock_skew", severity=severity, evidence=evidence, remedy="look at the time service")

    off = seen.clock_offset
    if off is not None and abs(off) > given.site.clock_fail_seconds:
        yield result(Severity.DEGRADED, f"its own time service says that it is {off:+.3f} s off")
    elif off is not None and abs(off) > given.site.clock_warn_seconds:
        yield result(Severity.NOTE, f"its own time service says that it is {off:+.3f} s off")
    elif off is None:
        yield result(Severity.UNKNOWN, "chronyc does not say how far it is off")
    # Ours may be the wrong one.
    if seen.skew is not None and abs(seen.skew) - seen.skew_error > given.site.clock_fail_seconds:
        yield result(Severity.NOTE, f"{seen.skew:+.1f} s against the clock here, give or take {seen.skew_error:.1f} s")
