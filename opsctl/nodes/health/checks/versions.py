"""The same driver, kernel and libraries everywhere: one odd node holds up or breaks the job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, NodeSnapshot, Severity


def versions(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    own = {"driver": snapshot.smi.driver if snapshot.smi else "", "kernel": snapshot.kernel_version}
    if snapshot.libraries:
        own |= {name: snapshot.libraries.get(name, NONE) for name in check_input.libraries}
    most = {"driver": check_input.driver, "kernel": check_input.kernel_version, **check_input.libraries}
    for what, version in own.items():
        if version and most[what] and version != most[what]:
            text = f"{what} {version}, most nodes have {most[what]}"
            yield CheckResult(check="versions", severity=Severity.NOTE, evidence=text,
                         remedy="bring the node to the others' version")  # fmt: skip
