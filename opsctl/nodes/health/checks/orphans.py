"""Processes that hold a card though the node has no job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def orphans(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if check_input.busy is not False or snapshot.in_job or snapshot.smi is None:
        return
    users = {
        process.pid: process for process in snapshot.processes or () if process.uid >= check_input.site.user_uid_min
    }
    for gpu in snapshot.smi.gpus:
        held = [process for process in gpu.processes if process.pid in users and users[process.pid].state not in "ZX"]
        if held:
            names = ", ".join(
                f"{gpu_process.pid} ({users[gpu_process.pid].name}, uid {users[gpu_process.pid].uid})"
                for gpu_process in held[:4]
            )
            yield CheckResult(check="orphans", severity=Severity.DEGRADED, gpu=gpu.uuid,
                         evidence=f"held by {names} though no job runs", remedy="end them by id")  # fmt: skip
