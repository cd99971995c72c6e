"""Check the site's file systems: mounted, writable and not full."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def mounts(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    mount_by_path = {mount.path: mount for mount in snapshot.mounts}
    for path in check_input.site.mounts:
        mount = mount_by_path.get(path)
        if mount is None or mount.section.code in {None, 124, 137}:
            why = "did not answer in time" if mount else "was not checked"
            yield _result(Severity.UNKNOWN, f"{path} {why}", "check the file server")
        elif mount.options is None:
            yield _result(Severity.FAULTY, f"{path} is not mounted", "mount the file system")
        elif "ro" in mount.options.split(","):
            yield _result(Severity.FAULTY, f"{path} is mounted read-only", "check the kernel log; remount")
        elif mount.section.code != 0 or mount.percent is None:
            yield _result(Severity.UNKNOWN, f"{path}: df {mount.section.why}")
        elif max(mount.percent, mount.inode_percent or 0) > check_input.site.mount_percent:
            text = f"{path} is {mount.percent} % full, {mount.inode_percent} % of its inodes"
            yield _result(Severity.NOTE, text)


def _result(severity: Severity, evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(check="mounts", severity=severity, evidence=evidence, remedy=remedy)
