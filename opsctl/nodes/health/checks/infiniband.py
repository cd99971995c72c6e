"""Network cards: ports that were active must be, and their lifetime counters are held against the last look."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Port, Severity

FATAL = ("link_downed", "excessive_buffer_overrun_errors", "local_link_integrity_errors")
"""One more of these is evidence."""
TELL = {"symbol_error": 120 / 3600, "link_error_recovery": 5 / 60, "port_rcv_errors": 10.0, "port_xmit_discards": 100.0}
"""More in a second than this is told. Thresholds as NVSentinel has them."""


def infiniband(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if not check_input.prior.ports:
        return
    if snapshot.section("infiniband").code != 0:
        yield CheckResult(
            check="infiniband", severity=Severity.UNKNOWN, evidence=f"/sys {snapshot.section('infiniband').why}"
        )
        return
    ignore = re.compile(check_input.site.ib_ignore) if check_input.site.ib_ignore else None
    seconds = (
        max(1.0, (snapshot.at - check_input.prior.ports_at).total_seconds()) if check_input.prior.ports_at else 1.0
    )
    for name, before in check_input.prior.ports.items():
        if ignore and ignore.search(name):
            continue
        now = snapshot.ports.get(name)
        if now is None or now.state != "ACTIVE":
            text = f"{name} was active and is {now.state if now else 'gone'}"
            yield CheckResult(
                check="infiniband", severity=Severity.FAULTY, evidence=text, remedy="look at the cable and the port"
            )
        else:
            yield from _counters(name, before, now, seconds)


def _counters(name: str, before: Port, now: Port, seconds: float) -> Iterator[CheckResult]:
    """Counters that went back were reset: nothing follows from those."""
    grown = {key: now.counters[key] - old for key, old in before.counters.items() if key in now.counters}
    for key in FATAL:
        if grown.get(key, 0) > 0:
            yield CheckResult(check="infiniband", severity=Severity.DEGRADED, remedy="look at the cable and the port",
                         evidence=f"{name}: {key} rose by {grown[key]} since the baseline")  # fmt: skip
    for key, rate in TELL.items():
        if grown.get(key, 0) > rate * seconds:
            yield CheckResult(check="infiniband", severity=Severity.NOTE,
                         evidence=f"{name}: {key} rose by {grown[key]} in {seconds:.0f} s")  # fmt: skip
