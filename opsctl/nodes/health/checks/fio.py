"""How fast a file system is from this node, where that was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.nodes.health.node_state import CheckInput, CheckResult, Fio, NodeSnapshot, Severity


def fio(seen: NodeSnapshot, given: CheckInput) -> Iterator[CheckResult]:
    if "fio" not in seen.sections:
        return
    if seen.fio is None:
        why = seen.section("fio").why or "printed something that cannot be read"
        is_missing = seen.section("fio").code == 127
        yield CheckResult(check="fio", severity=Severity.UNKNOWN, evidence=f"fio {why}",
                     remedy="apt-get install fio on the node" if is_missing else "try it there by hand")  # fmt: skip
        return
    slow = list(_slow(seen.fio, given))
    severity = Severity.DEGRADED if slow else Severity.NOTE
    remedy = "compare with other nodes; is the file system busy?" if slow else ""
    yield CheckResult(check="fio", severity=severity, evidence="; ".join([*slow, _words(seen.fio)]), remedy=remedy)


def _slow(found: Fio, given: CheckInput) -> Iterator[str]:
    """What the site expects and does not get. Where the page cache was in the way, reading is no evidence."""
    expected = {"write": (given.site.fio_write_mib_s, found.write_mib_s)}
    if found.is_direct:
        expected["read"] = (given.site.fio_read_mib_s, found.read_mib_s)
    for what, (least, figure) in expected.items():
        if figure < least:
            yield f"{what}s {figure:.0f} MiB/s, less than {least:g}"


def _words(found: Fio) -> str:
    each = [f"write {found.write_mib_s:.0f} MiB/s", f"read {found.read_mib_s:.0f} MiB/s"]
    each += [f"{found.read_iops:.0f} small reads/s"]
    each += [] if found.p99_ms is None else [f"99 % within {found.p99_ms:.2g} ms"]
    each += [] if found.is_direct else ["through the page cache"]
    return ", ".join(each)
