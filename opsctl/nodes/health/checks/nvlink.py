"""Links between cards: those that were up must be up. Counters alone are told, never held against a node."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def nvlink(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    if seen.smi is None or not (seen.links or given.prior.links):
        return
    if seen.section("nvlink").code != 0:
        yield CheckResult(
            check="nvlink", severity=Severity.UNKNOWN, evidence=f"nvidia-smi nvlink {seen.section('nvlink').why}"
        )
        return
    for gpu in seen.smi.gpus:
        down = set(given.prior.links.get(gpu.uuid, ())) & set(seen.links_down.get(gpu.uuid, ()))
        all_down = given.prior.links.get(gpu.uuid) and gpu.uuid in seen.links and not seen.links[gpu.uuid]
        if down or all_down:
            which = ", ".join(map(str, sorted(down))) or "all"
            yield CheckResult(
                check="nvlink",
                severity=Severity.DEGRADED,
                gpu=gpu.uuid,
                remedy="reset the GPUs, or reboot",
                evidence=f"links that were up are down: {which}",
            )
        before, now = given.prior.link_errors.get(gpu.uuid), seen.link_errors.get(gpu.uuid)
        if before is not None and now is not None and now > before:
            yield CheckResult(check="nvlink", severity=Severity.NOTE, gpu=gpu.uuid,
                         evidence=f"{now - before} new link errors since the last look")  # fmt: skip
