"""Processes that hang in the kernel, and zombies."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def processes(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    if seen.processes is None:
        yield CheckResult(check="processes", severity=Severity.UNKNOWN, evidence="/proc cannot be read")
        return
    for state, name in (("D", "in D state"), ("Z", "zombies")):
        old = [each for each in seen.processes if each.state == state and each.age > given.site.stuck_seconds]
        if old:
            some = ", ".join(f"{each.pid} ({each.name})" for each in old[:4])
            # The state is of this moment, the age is of the process: it may only have been busy just now.
            yield CheckResult(check="processes", severity=Severity.NOTE, evidence=f"{len(old)} {name}: {some}")
