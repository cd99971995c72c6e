"""The same driver and kernel everywhere: one odd node holds up or breaks the job."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.health.model import Given, Result, Severity, Snapshot


def versions(seen: Snapshot, given: Given) -> Iterator[Result]:
    for what, own, most in (("driver", seen.smi.driver if seen.smi else "", given.driver),
                            ("kernel", seen.kernel_version, given.kernel_version)):  # fmt: skip
        if own and most and own != most:
            yield Result(check="versions", severity=Severity.NOTE, evidence=f"{what} {own}, most nodes have {most}",
                         remedy="bring the node to the others' version")  # fmt: skip
