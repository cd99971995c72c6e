"""Links between cards: those that were up must be up. Counters alone are told, never held against a node."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def nvlink(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if snapshot.smi is None or not (snapshot.links or check_input.prior.links):
        return
    if snapshot.section("nvlink").code != 0:
        yield CheckResult(
            check="nvlink", severity=Severity.UNKNOWN, evidence=f"nvidia-smi nvlink {snapshot.section('nvlink').why}"
        )
        return
    for gpu in snapshot.smi.gpus:
        down = set(check_input.prior.links.get(gpu.uuid, ())) & set(snapshot.links_down.get(gpu.uuid, ()))
        all_down = check_input.prior.links.get(gpu.uuid) and gpu.uuid in snapshot.links and not snapshot.links[gpu.uuid]
        if down or all_down:
            which = ", ".join(map(str, sorted(down))) or "all"
            yield CheckResult(
                check="nvlink",
                severity=Severity.DEGRADED,
                gpu=gpu.uuid,
                remedy="reset the GPUs, or reboot",
                evidence=f"links that were up are down: {which}",
            )
        before, now = check_input.prior.link_errors.get(gpu.uuid), snapshot.link_errors.get(gpu.uuid)
        if before is not None and now is not None and now > before:
            yield CheckResult(check="nvlink", severity=Severity.NOTE, gpu=gpu.uuid,
                         evidence=f"{now - before} new link errors since the last look")  # fmt: skip
