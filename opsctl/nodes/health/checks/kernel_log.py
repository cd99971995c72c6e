"""Check the kernel log since boot against kernel_log.toml, whose rows name severity, threshold and source.

A row reports under its own check: sxid, mlx5, machine_checks, aer, nvme, disk, hung_tasks, lustre. A log that users may
not read is unknown once, as kernel_log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from opsctl.base.tables import read_package_table
from opsctl.nodes.health.check_results import Results
from opsctl.nodes.health.checks.xid import MAX_LINE_CHARS, list_recent_lines, report_unread
from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity

NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRow:
    """One row of kernel_log.toml."""

    check: str
    pattern: re.Pattern[str]
    severity: str
    meaning: str
    remedy: str
    source: str
    repeats: int = 1


@cache
def read_rows() -> tuple[LineRow, ...]:
    """Return the rows of kernel_log.toml."""
    rows = read_package_table("nodes/health/kernel_log.toml")["line"]
    return tuple(LineRow(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows)


def kernel_log(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    if snapshot.kernel is None:
        yield report_unread(snapshot, Severity.UNKNOWN)
        return
    matches: dict[tuple[int, str], list[str]] = {}
    for line in list_recent_lines(snapshot, check_input):
        place = _find_row(line.text)
        if place is not None:
            matches.setdefault(place, []).append(" ".join(line.text.split()))
    for (number, device), lines in sorted(matches.items()):
        yield _judge(read_rows()[number], device, lines)


def _find_row(text: str) -> tuple[int, str] | None:
    """Return the number of the first row that matches a line, and the device; None for a line without weight."""
    for number, row in enumerate(read_rows()):
        if match := row.pattern.search(text):
            device = next((name for name in match.groups() if name), "")
            return None if row.severity == NONE else (number, device)
    return None


def _judge(row: LineRow, device: str, lines: list[str]) -> CheckResult:
    times = f"{len(lines)} x " if len(lines) > 1 else ""
    where = f" on {device}" if device else ""
    return CheckResult(
        Severity(row.severity) if len(lines) >= row.repeats else Severity.NOTE,
        f"{times}{row.meaning}{where}: {lines[-1][:MAX_LINE_CHARS]}",
        row.remedy,
        check=row.check,
    )
