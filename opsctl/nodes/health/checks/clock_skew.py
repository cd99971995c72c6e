"""Check the offset of the clock: a wrong clock falsifies log times and timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def clock_skew(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    offset_s, site = snapshot.clock_offset_s, check_input.site
    if offset_s is None:
        yield _result(Severity.UNKNOWN, "chronyc reports no clock offset")
    elif abs(offset_s) > site.clock_fail_seconds:
        yield _result(Severity.DEGRADED, _render_offset(offset_s))
    elif abs(offset_s) > site.clock_warn_seconds:
        yield _result(Severity.NOTE, _render_offset(offset_s))
    # Only a note: the clock of this machine may be the wrong clock.
    if snapshot.skew_s is not None and abs(snapshot.skew_s) - snapshot.skew_error_s > site.clock_fail_seconds:
        text = f"{snapshot.skew_s:+.1f} s from this machine's clock (uncertainty {snapshot.skew_error_s:.1f} s)"
        yield _result(Severity.NOTE, text)


def _render_offset(offset_s: float) -> str:
    return f"the node's time service reports a clock offset of {offset_s:+.3f} s"


def _result(severity: Severity, evidence: str) -> CheckResult:
    return CheckResult(check="clock_skew", severity=severity, evidence=evidence, remedy="check the node's time service")
