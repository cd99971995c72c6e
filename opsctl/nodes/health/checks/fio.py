"""Check the speed of a file system from this node, if requested."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Fio, NodeSnapshot, Severity


def fio(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if "fio" not in snapshot.sections:
        return
    if snapshot.fio is None:
        why = snapshot.section("fio").why or "printed something that cannot be read"
        is_missing = snapshot.section("fio").code == 127
        yield CheckResult(check="fio", severity=Severity.UNKNOWN, evidence=f"fio {why}",
                     remedy="apt-get install fio on the node" if is_missing else "try it there by hand")  # fmt: skip
        return
    slow = list(_slow(snapshot.fio, check_input))
    severity = Severity.DEGRADED if slow else Severity.NOTE
    remedy = "compare with other nodes; is the file system busy?" if slow else ""
    yield CheckResult(check="fio", severity=severity, evidence="; ".join([*slow, _words(snapshot.fio)]), remedy=remedy)


def _slow(fio: Fio, check_input: CheckInput) -> Iterator[str]:
    """Yield speeds below the site's settings. Reads through the page cache are no evidence."""
    expected = {"write": (check_input.site.fio_write_mib_s, fio.write_mib_s)}
    if fio.is_direct:
        expected["read"] = (check_input.site.fio_read_mib_s, fio.read_mib_s)
    for operation, (least, figure) in expected.items():
        if figure < least:
            yield f"{operation}s {figure:.0f} MiB/s, less than {least:g}"


def _words(fio: Fio) -> str:
    figures = [f"write {fio.write_mib_s:.0f} MiB/s", f"read {fio.read_mib_s:.0f} MiB/s"]
    figures += [f"{fio.read_iops:.0f} small reads/s"]
    figures += [] if fio.p99_ms is None else [f"99 % within {fio.p99_ms:.2g} ms"]
    figures += [] if fio.is_direct else ["through the page cache"]
    return ", ".join(figures)
