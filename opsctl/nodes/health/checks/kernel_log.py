"""Check the kernel log since boot: Xid lines against xid.toml, other lines against kernel_log.toml.

The rows of kernel_log.toml name severity, threshold and source. A row reports under its own check: xid, sxid,
gpu_driver, amdgpu, mlx5, machine_checks, aer, nvme, disk, hung_tasks, lustre. A log that users may not read is unknown
once, as kernel_log.
"""

from dataclasses import dataclass

from opsctl.nodes.health.check_results import Results
from opsctl.nodes.health.kernel_lines import (
    NONE,
    RECOVERY_CHANGE,
    XID_LINE,
    LineRow,
    XidRow,
    find_requested,
    find_row,
    is_fatal,
    read_rows,
    read_xids,
)
from opsctl.nodes.health.node_state import CheckInput, CheckResult, CheckSeverity, Gpu, KernelLine, NodeSnapshot
from opsctl.nodes.health.nvidia_smi import normalize_bus

MAX_LINE_CHARS = 120
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One Xid line of a GPU."""

    code: int
    text: str
    line: str


def kernel_log(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    if snapshot.kernel is None:
        yield report_unread(snapshot, CheckSeverity.UNKNOWN)
        return
    matches: dict[tuple[int, str], list[str]] = {}
    for line in list_recent_lines(snapshot, check_input):
        place = find_row(line.text)
        if place is not None and read_rows()[place[0]].severity != NONE:
            matches.setdefault(place, []).append(" ".join(line.text.split()))
    for (number, device), lines in sorted(matches.items()):
        yield _judge_lines(read_rows()[number], device, lines)


def _judge_lines(row: LineRow, device: str, lines: list[str]) -> CheckResult:
    times = f"{len(lines)} x " if len(lines) > 1 else ""
    where = f" on {device}" if device else ""
    return CheckResult(
        CheckSeverity(row.severity) if len(lines) >= row.repeats else CheckSeverity.NOTE,
        f"{times}{row.meaning}{where}: {lines[-1][:MAX_LINE_CHARS]}",
        row.remedy,
        check=row.check,
    )


def xid(snapshot: NodeSnapshot, check_input: CheckInput) -> Results:
    if snapshot.kernel is None:
        yield from _report_unread_log(snapshot)
        return
    gpus = snapshot.gpus
    for bus, events in group_events(snapshot, check_input).items():
        gpu = next((gpu for gpu in gpus if bus and gpu.bus == bus), None)
        for code in dict.fromkeys(event.code for event in events):
            yield from _judge_events([event for event in events if event.code == code], gpu, bus, check_input)


def _report_unread_log(snapshot: NodeSnapshot) -> Results:
    gpus = snapshot.gpus
    if (snapshot.on_bus == 0 and not gpus) or snapshot.gpu_tool[0] == "amd-smi":
        return  # Xids are NVIDIA's
    # The driver's recovery action covers the same faults.
    is_covered = gpus and all(gpu.recovery is not None for gpu in gpus)
    yield report_unread(snapshot, CheckSeverity.NOTE if is_covered else CheckSeverity.UNKNOWN)


def report_unread(snapshot: NodeSnapshot, severity: CheckSeverity) -> CheckResult:
    """Return the result for a kernel log that could not be read."""
    why = snapshot.section("kernel").why or "cannot be read"
    remedy = "allow users to read the kernel log (kernel.dmesg_restrict=0), or run as root"
    return CheckResult(severity, f"kernel log: {why}", remedy)


def list_recent_lines(snapshot: NodeSnapshot, check_input: CheckInput) -> list[KernelLine]:
    """Return the lines within `xid_hours` and since the node was put back into service."""
    limit_s = min(check_input.site.xid_hours * SECONDS_PER_HOUR, check_input.prior.cleared_s(snapshot.at))
    return [line for line in snapshot.kernel or () if line.age_s is None or line.age_s <= limit_s]


def group_events(snapshot: NodeSnapshot, check_input: CheckInput) -> dict[str, list[XidEvent]]:
    """Return the Xid lines by GPU, without lines before the driver last reported that no recovery is needed."""
    events: dict[str, list[XidEvent]] = {}
    for line in list_recent_lines(snapshot, check_input):
        match = XID_LINE.search(line.text)
        if match is None:
            continue
        bus, code, text = normalize_bus(match[1]), int(match[2]), match[3].strip()
        change = RECOVERY_CHANGE.search(text) if code == 154 else None
        if change and change[1].lower() == "none":
            events.pop(bus, None)
            continue
        events.setdefault(bus, []).append(XidEvent(code=code, text=text, line=" ".join(line.text.split())))
    return events


def _judge_events(events: list[XidEvent], gpu: Gpu | None, bus: str, check_input: CheckInput) -> Results:
    last = events[-1]
    row = read_xids().get(last.code)
    times = f"{len(events)} x " if len(events) > 1 else ""
    meaning = row.meaning if row else "not in the table"
    severity = _decide_severity(row, events, gpu, check_input)
    if severity is not None:
        yield CheckResult(
            severity,
            f"{times}Xid {last.code} ({meaning}) on {bus or 'a GPU'}: {last.line[:MAX_LINE_CHARS]}",
            row.action if row else "read docs.nvidia.com/deploy/xid-errors",
            gpu=gpu.uuid if gpu else "",
        )


def _decide_severity(
    row: XidRow | None, events: list[XidEvent], gpu: Gpu | None, check_input: CheckInput
) -> CheckSeverity | None:
    """Return the severity of events of one code on one GPU; None for no result. xid.toml explains the rules."""
    repeats = len(events) >= check_input.site.xid_repeats
    is_recovered = gpu is not None and (gpu.recovery or "").lower() == "none"
    has_fatal = any(is_fatal(event.text) for event in events)
    repeated = CheckSeverity.DEGRADED if repeats else CheckSeverity.NOTE
    requested = find_requested(events[-1].text)
    severities = {
        "yes": CheckSeverity.NOTE if is_recovered else CheckSeverity.FAULTY,
        "yes-stays": CheckSeverity.FAULTY,
        "after-job": CheckSeverity.NOTE if is_recovered else CheckSeverity.DEGRADED,
        "repeat": CheckSeverity.FAULTY if has_fatal and not is_recovered else repeated,
        "repeat-note": CheckSeverity.NOTE if repeats else None,
        "if-fatal": CheckSeverity.FAULTY if has_fatal else CheckSeverity.NOTE,
        "follow": CheckSeverity.NOTE if requested is None or is_recovered else requested,
        "report": CheckSeverity.NOTE,
    }
    return severities.get(row.drain if row else "report")
