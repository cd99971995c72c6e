"""Processes that hold a card though the node has no job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def orphans(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    if given.busy is not False or seen.in_job or seen.smi is None:
        return
    users = {each.pid: each for each in seen.processes or () if each.uid >= given.site.user_uid_min}
    for gpu in seen.smi.gpus:
        held = [each for each in gpu.processes if each.pid in users and users[each.pid].state not in "ZX"]
        if held:
            names = ", ".join(f"{each.pid} ({users[each.pid].name}, uid {users[each.pid].uid})" for each in held[:4])
            yield CheckResult(check="orphans", severity=Severity.DEGRADED, gpu=gpu.uuid,
                         evidence=f"held by {names} though no job runs", remedy="end them by id")  # fmt: skip
