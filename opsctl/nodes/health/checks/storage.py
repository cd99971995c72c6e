"""Checks of shared memory, file systems and disks."""

from collections.abc import Iterator
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.base.units import format_size
from opsctl.nodes.health.check_results import Results, degraded, faulty, note, unknown
from opsctl.nodes.health.node_state import CheckInput, CheckResult, CheckSeverity, DiskLog, Fio, NodeSnapshot

BYTES_PER_KIB = 1024
BYTES_PER_GIB = 2**30
LUSTRE_HEALTHY = "healthy"
WARNINGS: list[dict[str, Any]] = read_package_table("nodes/health/checks/nvme.toml")["warnings"]
MAX_USED_PERCENT = 100
"""A disk beyond its rated endurance may work on: only a note."""
DISK_REMEDY = "replace the disk"


def shm(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check shared memory (/dev/shm): large enough, and not full of files of earlier jobs."""
    site = check_input.site
    if snapshot.shm_kb is None or snapshot.shm_percent is None:
        yield unknown(f"df {snapshot.section('shm').why or 'cannot be read'}")
        return
    size_bytes, required_bytes = snapshot.shm_kb * BYTES_PER_KIB, site.shm_gib * BYTES_PER_GIB
    if size_bytes < required_bytes:
        text = f"{format_size(size_bytes)} of shared memory, required {format_size(required_bytes)}"
        yield degraded(text, "remount /dev/shm with a larger size")
    if snapshot.shm_percent > site.shm_percent:
        # A running job may fill shared memory.
        severity = CheckSeverity.DEGRADED if check_input.busy is False else CheckSeverity.NOTE
        text = f"shared memory is {snapshot.shm_percent} % full"
        yield CheckResult(severity, text, "remove files of earlier jobs from /dev/shm")


def mounts(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the site's file systems: mounted, writable and not full."""
    mount_by_path = {mount.path: mount for mount in snapshot.mounts}
    for path in check_input.site.mounts:
        mount = mount_by_path.get(path)
        if mount is None or mount.section.code in {None, 124, 137}:
            why = "did not answer in time" if mount else "was not checked"
            yield unknown(f"{path} {why}", "check the file server")
        elif mount.options is None:
            yield faulty(f"{path} is not mounted", "mount the file system")
        elif "ro" in mount.options.split(","):
            yield faulty(f"{path} is mounted read-only", "check the kernel log; remount")
        elif mount.section.code != 0 or mount.percent is None:
            yield unknown(f"{path}: df {mount.section.why}")
        elif max(mount.percent, mount.inode_percent or 0) > check_input.site.mount_percent:
            yield note(f"{path} is {mount.percent} % full, {mount.inode_percent} % of its inodes")


def lustre(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check Lustre's own health check (/sys/fs/lustre/health_check). Evictions are rows of kernel_log.toml.

    The file says `healthy`, `NOT HEALTHY`, or `LBUG` after an internal error, which only a reboot ends (Lustre
    Operations Manual). NVIDIA's resiliency extension refuses a node that is not healthy.
    """
    state = snapshot.hardware.lustre if snapshot.hardware else ""
    if not state or state == LUSTRE_HEALTHY:
        return
    is_stopped = "LBUG" in state
    yield CheckResult(
        CheckSeverity.FAULTY if is_stopped else CheckSeverity.DEGRADED,
        f"Lustre reports: {state}",
        "reboot the node" if is_stopped else "read the kernel log; check the network to the file servers",
    )


def nvme(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check NVMe disks: the driver's state and the SMART log, which only root may read.

    The kernel log has its own rows.

    The bits of the critical warning are those of the NVM Express Base Specification, log page 02h: spare blocks below
    the disk's own threshold and a degraded device are evidence, a read-only disk fails the node; a hot disk is a note.
    """
    disks = snapshot.hardware.disks if snapshot.hardware else {}
    for name, state in disks.items():
        if state == "dead":
            yield faulty(f"{name} is dead", DISK_REMEDY)
        elif state != "live":
            yield note(f"{name} is {state}")
    for name, log in snapshot.disk_logs.items():
        yield from _check_disk_log(name, log)
    missing = sorted(set(disks) - set(snapshot.disk_logs))
    if missing:
        why = snapshot.section("nvme").why or "printed no SMART log"
        yield unknown(f"SMART log of {', '.join(missing)}: {why}", "install nvme-cli; run as root")


def _check_disk_log(name: str, log: DiskLog) -> Results:
    for row in WARNINGS:
        if log.critical_warning & row["bit"]:
            text = f"{name} {row['says']} (critical warning {log.critical_warning:#04x})"
            yield CheckResult(CheckSeverity(row["severity"]), text, DISK_REMEDY)
    if (log.used_percent or 0) >= MAX_USED_PERCENT:
        yield note(f"{name} has used {log.used_percent} % of its rated endurance", DISK_REMEDY)
    if log.media_errors:
        yield note(f"{name} counts {log.media_errors} media errors")


def fio(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    """Check the speed of a file system from this node, if requested."""
    if "fio" not in snapshot.sections:
        return
    if snapshot.fio is None:
        section = snapshot.section("fio")
        why = section.why or "printed unreadable output"
        remedy = "install fio on the node" if section.code == 127 else "run fio on the node"
        yield unknown(f"fio {why}", remedy)
        return
    slow = list(_find_slow_operations(snapshot.fio, check_input))
    severity = CheckSeverity.DEGRADED if slow else CheckSeverity.NOTE
    remedy = "compare with other nodes; check the load of the file system" if slow else ""
    yield CheckResult(severity, "; ".join([*slow, _render_speeds(snapshot.fio)]), remedy)


def _find_slow_operations(fio: Fio, check_input: CheckInput) -> Iterator[str]:
    """Yield speeds below the site's settings. Reads through the page cache are no evidence."""
    speeds = {"write": (check_input.site.fio_write_mib_s, fio.write_mib_s)}
    if fio.is_direct:
        speeds["read"] = (check_input.site.fio_read_mib_s, fio.read_mib_s)
    for operation, (min_mib_s, measured_mib_s) in speeds.items():
        if measured_mib_s < min_mib_s:
            yield f"{operation}s {measured_mib_s:.0f} MiB/s, less than {min_mib_s:g}"


def _render_speeds(fio: Fio) -> str:
    parts = [
        f"write {fio.write_mib_s:.0f} MiB/s",
        f"read {fio.read_mib_s:.0f} MiB/s",
        f"{fio.read_iops:.0f} small reads/s",
    ]
    if fio.p99_ms is not None:
        parts.append(f"99 % within {fio.p99_ms:.2g} ms")
    if not fio.is_direct:
        parts.append("through the page cache")
    return ", ".join(parts)
