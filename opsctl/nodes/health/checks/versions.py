"""Check that driver, kernel and libraries are those of most nodes: one node that differs may break the job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import NONE, CheckInput, CheckResult, NodeSnapshot, Severity


def versions(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    installed = {"driver": snapshot.smi.driver if snapshot.smi else "", "kernel": snapshot.kernel_version}
    if snapshot.libraries:
        installed |= {name: snapshot.libraries.get(name, NONE) for name in check_input.libraries}
    usual = {"driver": check_input.driver, "kernel": check_input.kernel_version, **check_input.libraries}
    for name, version in installed.items():
        if version and usual[name] and version != usual[name]:
            text = f"{name} {version}, most nodes have {usual[name]}"
            remedy = "install the version of most nodes"
            yield CheckResult(check="versions", severity=Severity.NOTE, evidence=text, remedy=remedy)
