"""Check the kernel log since boot against kernel_log.toml, whose rows name severity, threshold and source.

A row reports under its own check: xid, sxid, gpu_driver, amdgpu, mlx5, machine_checks, aer, nvme, disk, hung_tasks,
lustre. A log that users may not read is unknown once, as kernel_log.
"""

from opsctl.nodes.health.check_results import Results
from opsctl.nodes.health.checks.xid import MAX_LINE_CHARS, list_recent_lines, report_unread
from opsctl.nodes.health.kernel_lines import NONE, LineRow, find_row, read_rows
from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot, Severity


def kernel_log(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    if snapshot.kernel is None:
        yield report_unread(snapshot, Severity.UNKNOWN)
        return
    matches: dict[tuple[int, str], list[str]] = {}
    for line in list_recent_lines(snapshot, check_input):
        place = find_row(line.text)
        if place is not None and read_rows()[place[0]].severity != NONE:
            matches.setdefault(place, []).append(" ".join(line.text.split()))
    for (number, device), lines in sorted(matches.items()):
        yield _judge(read_rows()[number], device, lines)


def _judge(row: LineRow, device: str, lines: list[str]) -> CheckResult:
    times = f"{len(lines)} x " if len(lines) > 1 else ""
    where = f" on {device}" if device else ""
    return CheckResult(
        Severity(row.severity) if len(lines) >= row.repeats else Severity.NOTE,
        f"{times}{row.meaning}{where}: {lines[-1][:MAX_LINE_CHARS]}",
        row.remedy,
        check=row.check,
    )
