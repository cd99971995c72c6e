"""Check the speed of a file system from this node, if requested."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Fio, NodeSnapshot, Severity


def fio(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if "fio" not in snapshot.sections:
        return
    if snapshot.fio is None:
        section = snapshot.section("fio")
        why = section.why or "printed unreadable output"
        remedy = "install fio on the node" if section.code == 127 else "run fio on the node"
        yield CheckResult(check="fio", severity=Severity.UNKNOWN, evidence=f"fio {why}", remedy=remedy)
        return
    slow = list(_find_slow_operations(snapshot.fio, check_input))
    severity = Severity.DEGRADED if slow else Severity.NOTE
    remedy = "compare with other nodes; check the load of the file system" if slow else ""
    yield CheckResult(
        check="fio", severity=severity, evidence="; ".join([*slow, _render_speeds(snapshot.fio)]), remedy=remedy
    )


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
