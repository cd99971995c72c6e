"""Check NVLink: links that were up must be up, and as many as on most nodes. Error counters alone are no evidence."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity
from opsctl.nodes.health.usual_hardware import NVLINKS

REMEDY = "reset the GPUs, or reboot the node"


def nvlink(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    prior = check_input.prior
    expected = check_input.site.nvlinks or check_input.usual.values.get(NVLINKS, 0)
    if snapshot.smi is None or not (snapshot.links or prior.links or expected):
        return
    section = snapshot.section("nvlink")
    if section.code != 0:
        yield CheckResult(check="nvlink", severity=Severity.UNKNOWN, evidence=f"nvidia-smi nvlink {section.why}")
        return
    for gpu in snapshot.smi.gpus:
        up_before = prior.links.get(gpu.uuid, ())
        down = set(up_before) & set(snapshot.links_down.get(gpu.uuid, ()))
        is_all_down = up_before and gpu.uuid in snapshot.links and not snapshot.links[gpu.uuid]
        if down or is_all_down:
            links = ", ".join(map(str, sorted(down))) or "all"
            yield CheckResult(
                check="nvlink",
                severity=Severity.DEGRADED,
                gpu=gpu.uuid,
                evidence=f"links that were up are down: {links}",
                remedy=REMEDY,
            )
        elif gpu.uuid in snapshot.links and len(snapshot.links[gpu.uuid]) < expected:
            whose = "the settings name" if check_input.site.nvlinks else "most nodes of this kind have"
            text = f"{len(snapshot.links[gpu.uuid])} links are up, {whose} {expected:g}"
            yield CheckResult(check="nvlink", severity=Severity.DEGRADED, gpu=gpu.uuid, evidence=text, remedy=REMEDY)
        before, now = prior.link_errors.get(gpu.uuid), snapshot.link_errors.get(gpu.uuid)
        if before is not None and now is not None and now > before:
            text = f"{now - before} new link errors since the last check"
            yield CheckResult(check="nvlink", severity=Severity.NOTE, gpu=gpu.uuid, evidence=text)
