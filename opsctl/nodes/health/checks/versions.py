"""The same driver, kernel and libraries everywhere: one odd node holds up or breaks the job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, NodeSnapshot, Severity


def versions(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    own = {"driver": seen.smi.driver if seen.smi else "", "kernel": seen.kernel_version}
    if seen.libraries:
        own |= {name: seen.libraries.get(name, NONE) for name in given.libraries}
    most = {"driver": given.driver, "kernel": given.kernel_version, **given.libraries}
    for what, version in own.items():
        if version and most[what] and version != most[what]:
            said = f"{what} {version}, most nodes have {most[what]}"
            yield CheckResult(check="versions", severity=Severity.NOTE, evidence=said,
                         remedy="bring the node to the others' version")  # fmt: skip
