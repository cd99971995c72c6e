"""Check the Xid lines of the kernel log since boot against xid.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opsctl.nodes.health.checks.recovery import ACTIONS
from opsctl.nodes.health.node_state import CheckInput, CheckResult, Gpu, KernelLine, NodeSnapshot, Severity
from opsctl.nodes.health.nvidia_smi import bus_of

LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{1,20})[^)]*\): (\d{1,4}),? ?(.*)", re.ASCII)
CHANGED = re.compile(r"recovery action changed from .* to 0x[0-9a-f]{1,4} \(([^)]{1,60})\)", re.IGNORECASE)
TABLE = Path(__file__).parent.parent / "xid.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRow:
    """One code of xid.toml."""

    code: int
    meaning: str
    action: str
    drain: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One Xid line."""

    bus: str
    code: int
    text: str
    line: str


@cache
def table() -> dict[int, XidRow]:
    """xid.toml, by code."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["xid"]
    return {
        code: XidRow(code=code, meaning=row["meaning"], action=row["action"], drain=row["drain"], source=row["source"])
        for row in rows
        for code in row["codes"]
    }


def xid(snapshot: NodeSnapshot, check_input: CheckInput) -> Iterator[CheckResult]:
    if snapshot.kernel is None:
        yield from _unread(snapshot)
        return
    for bus, events in events_by_card(snapshot, check_input).items():
        gpus = snapshot.smi.gpus if snapshot.smi else ()
        gpu = next((gpu for gpu in gpus if bus and gpu.bus == bus), None)
        for code in dict.fromkeys(event.code for event in events):
            same = [event for event in events if event.code == code]
            yield from _judge(same, gpu, bus, check_input)
    if any("fallen off the bus" in line.text and "Xid" not in line.text for line in recent(snapshot, check_input)):
        yield CheckResult(
            check="xid",
            severity=Severity.FAULTY,
            remedy="reboot the node",
            evidence="the kernel log says that a GPU has fallen off the bus",
        )


def _unread(snapshot: NodeSnapshot) -> Iterator[CheckResult]:
    gpus = snapshot.smi.gpus if snapshot.smi else ()
    if (snapshot.on_bus == 0 and not gpus) or snapshot.gpu_tool[0] == "amd-smi":
        return  # Xids are NVIDIA's
    # The driver's recovery action covers the same faults.
    is_covered = gpus and all(gpu.recovery is not None for gpu in gpus)
    why = snapshot.section("kernel").why or "cannot be read"
    yield CheckResult(
        check="xid",
        severity=Severity.NOTE if is_covered else Severity.UNKNOWN,
        evidence=f"kernel log: {why}",
        remedy="allow users to read it (kernel.dmesg_restrict=0), or run as root",
    )


def recent(snapshot: NodeSnapshot, check_input: CheckInput) -> list[KernelLine]:
    """Return the lines within `xid_hours` and since the node was put back into service."""
    limit = check_input.site.xid_hours * 3600
    if check_input.prior.cleared is not None:
        limit = min(limit, (snapshot.at - check_input.prior.cleared).total_seconds())
    return [line for line in snapshot.kernel or () if line.age is None or line.age <= limit]


def events_by_card(snapshot: NodeSnapshot, check_input: CheckInput) -> dict[str, list[XidEvent]]:
    """Return the Xid lines by GPU, without lines before the driver last reported that no recovery is needed."""
    events: dict[str, list[XidEvent]] = {}
    for line in recent(snapshot, check_input):
        match = LINE.search(line.text)
        if match is None:
            continue
        bus, code, text = bus_of(match[1]), int(match[2]), match[3].strip()
        changed = CHANGED.search(text) if code == 154 else None
        if changed and changed[1].lower() == "none":
            events.pop(bus, None)
            continue
        events.setdefault(bus, []).append(XidEvent(bus=bus, code=code, text=text, line=" ".join(line.text.split())))
    return events


def _judge(events: list[XidEvent], gpu: Gpu | None, bus: str, check_input: CheckInput) -> Iterator[CheckResult]:
    last = events[-1]
    row = table().get(last.code)
    times = f"{len(events)} x " if len(events) > 1 else ""
    text = (
        f"{times}Xid {last.code} ({row.meaning if row else 'not in the table'}) on {bus or 'a GPU'}: {last.line[:120]}"
    )
    severity = _severity(row, events, gpu, check_input)
    if severity is not None:
        yield CheckResult(check="xid", severity=severity, gpu=gpu.uuid if gpu else "", evidence=text,
                     remedy=row.action if row else "look it up: docs.nvidia.com/deploy/xid-errors")  # fmt: skip


def _severity(row: XidRow | None, events: list[XidEvent], gpu: Gpu | None, check_input: CheckInput) -> Severity | None:
    drain = row.drain if row else "report"
    repeats = len(events) >= check_input.site.xid_repeats
    needs_none = gpu is not None and (gpu.recovery or "").lower() == "none"
    return {
        "yes": Severity.NOTE if needs_none else Severity.FAULTY,
        "yes-stays": Severity.FAULTY,
        "after-job": Severity.NOTE if needs_none else Severity.DEGRADED,
        "repeat": Severity.DEGRADED if repeats else Severity.NOTE,
        "repeat-note": Severity.NOTE if repeats else None,
        "if-fatal": Severity.FAULTY if any(re.search(r"\bFatal\b", event.text) for event in events) else Severity.NOTE,
        "follow": _followed(events[-1].text, needs_none=needs_none),
        "report": Severity.NOTE,
    }.get(drain)


def _followed(text: str, *, needs_none: bool) -> Severity | None:
    """Return the severity of the action that an Xid 154 requests. An unknown action is a note."""
    changed = CHANGED.search(text)
    severity = ACTIONS.get(changed[1].lower()) if changed else None
    return Severity.NOTE if severity is None or needs_none else severity
