"""Check for processes that hang in the kernel, and for zombies."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

STATES = {"D": "in D state", "Z": "zombies"}
MAX_NAMED_PROCESSES = 4


def processes(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if snapshot.processes is None:
        yield CheckResult(check="processes", severity=Severity.UNKNOWN, evidence="/proc cannot be read")
        return
    limit_s = check_input.site.stuck_seconds
    for state, description in STATES.items():
        old = [process for process in snapshot.processes if process.state == state and process.age_s > limit_s]
        if old:
            names = ", ".join(f"{process.pid} ({process.name})" for process in old[:MAX_NAMED_PROCESSES])
            # Only a note: an old process may have entered the state a moment ago.
            yield CheckResult(check="processes", severity=Severity.NOTE, evidence=f"{len(old)} {description}: {names}")
