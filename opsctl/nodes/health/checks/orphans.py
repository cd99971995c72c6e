"""Check for orphan processes: user processes that hold a GPU of a node without a job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeProcess, NodeSnapshot, Severity

MAX_NAMED_PROCESSES = 4


def orphans(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if check_input.busy is not False or snapshot.in_job or snapshot.smi is None:
        return
    users: dict[int, NodeProcess] = {}
    for process in snapshot.processes or ():
        if process.uid >= check_input.site.user_uid_min and process.state not in "ZX":
            users[process.pid] = process
    for gpu in snapshot.smi.gpus:
        holders = [users[process.pid] for process in gpu.processes if process.pid in users]
        if holders:
            names = ", ".join(
                f"{process.pid} ({process.name}, uid {process.uid})" for process in holders[:MAX_NAMED_PROCESSES]
            )
            yield CheckResult(
                check="orphans",
                severity=Severity.DEGRADED,
                gpu=gpu.uuid,
                evidence=f"held by {names} although no job runs",
                remedy="opsctl undrain-good-nodes NODE --kill-orphans",
            )
