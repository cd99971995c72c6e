"""File systems that must be there: mounted, writable, not full."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def mounts(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    named = {mount.path: mount for mount in snapshot.mounts}
    for path in check_input.site.mounts:
        mount = named.get(path)
        if mount is None or mount.section.code in {None, 124, 137}:
            why = "did not answer in time" if mount else "was not looked at"
            yield CheckResult(
                check="mounts", severity=Severity.UNKNOWN, evidence=f"{path} {why}", remedy="is its server up?"
            )
        elif mount.options is None:
            yield CheckResult(
                check="mounts", severity=Severity.FAULTY, evidence=f"{path} is not mounted", remedy="mount it"
            )
        elif "ro" in mount.options.split(","):
            yield CheckResult(check="mounts", severity=Severity.FAULTY, evidence=f"{path} is mounted read-only",
                         remedy="look at the kernel log; mount it again")  # fmt: skip
        elif mount.section.code != 0 or mount.percent is None:
            yield CheckResult(check="mounts", severity=Severity.UNKNOWN, evidence=f"{path}: df {mount.section.why}")
        elif max(mount.percent, mount.inode_percent or 0) > check_input.site.mount_percent:
            text = f"{path} is {mount.percent} % full, {mount.inode_percent} % of its inodes"
            yield CheckResult(check="mounts", severity=Severity.NOTE, evidence=text)
