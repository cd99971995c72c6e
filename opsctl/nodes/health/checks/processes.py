"""Processes that hang in the kernel, and zombies."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def processes(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if snapshot.processes is None:
        yield CheckResult(check="processes", severity=Severity.UNKNOWN, evidence="/proc cannot be read")
        return
    for state, name in (("D", "in D state"), ("Z", "zombies")):
        old = [
            process
            for process in snapshot.processes
            if process.state == state and process.age > check_input.site.stuck_seconds
        ]
        if old:
            some = ", ".join(f"{node_process.pid} ({node_process.name})" for node_process in old[:4])
            # The state is of this moment, the age is of the process: it may only have been busy just now.
            yield CheckResult(check="processes", severity=Severity.NOTE, evidence=f"{len(old)} {name}: {some}")
