"""Check network ports: active ports must stay active, and error counters must not rise above the baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Port, Severity
from opsctl.units import format_duration

DAMAGE_COUNTERS = ("link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors")
"""Counters of which any rise is evidence."""
MAX_RATES_PER_S = {
    "symbol_error": 120 / 3600,
    "link_error_recovery": 5 / 60,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
}
"""A faster rise is a note. The thresholds are NVSentinel's."""
REMEDY = "check the cable and the port"


def infiniband(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    prior, site = check_input.prior, check_input.site
    if not prior.ports:
        return
    section = snapshot.section("infiniband")
    if section.code != 0:
        yield _result(Severity.UNKNOWN, f"/sys {section.why}")
        return
    ignored = re.compile(site.ib_ignore) if site.ib_ignore else None
    passed_s = max(1.0, (snapshot.at - prior.ports_at).total_seconds()) if prior.ports_at else 1.0
    for name, before in prior.ports.items():
        if ignored and ignored.search(name):
            continue
        now = snapshot.ports.get(name)
        if now is None or now.state != "ACTIVE":
            yield _result(Severity.FAULTY, f"{name} was active and is {now.state if now else 'gone'}", REMEDY)
        else:
            yield from _check_counters(name, before, now, passed_s)


def _check_counters(name: str, before: Port, now: Port, passed_s: float) -> Iterator[CheckResult]:
    """Yield the counters that rose too much. A counter that fell has been reset and is no evidence."""
    rises = {
        counter: now.counters[counter] - old for counter, old in before.counters.items() if counter in now.counters
    }
    for counter in DAMAGE_COUNTERS:
        rise = rises.get(counter, 0)
        if rise > 0:
            yield _result(Severity.DEGRADED, f"{name}: {counter} rose by {rise} since the baseline", REMEDY)
    for counter, max_rate in MAX_RATES_PER_S.items():
        rise = rises.get(counter, 0)
        if rise > max_rate * passed_s:
            yield _result(Severity.NOTE, f"{name}: {counter} rose by {rise} in {format_duration(passed_s)}")


def _result(severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="infiniband", severity=severity, evidence=evidence, remedy=remedy)
