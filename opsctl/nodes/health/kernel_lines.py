"""What one line of the kernel log means, by the tables xid.toml and kernel_log.toml. Pure.

Health checks judge a node by these tables, and the diagnosis judges a log of a training that quotes such lines.
"""

import re
from dataclasses import dataclass
from functools import cache

from opsctl.base.tables import read_package_table
from opsctl.nodes.health.node_state import CheckSeverity

NONE = "none"
"""Severity of lines that later rows must not match."""
OTHER_XID = "gpu-xid-other"
"""The cause of an Xid without a cause of its own in xid.toml, and of codes without a row."""
XID_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{1,20})[^)]*\): (\d{1,4}),? ?(.*)", re.ASCII)
RECOVERY_CHANGE = re.compile(r"recovery action changed from .* to 0x[0-9a-f]{1,4} \(([^)]{1,60})\)", re.IGNORECASE)
RECOVERY_ACTIONS = {
    word: CheckSeverity(row) if row else None for word, row in read_package_table("nodes/health/recovery.toml").items()
}
"""Severity by the words of several nvidia-smi versions for NVML's GPU recovery action."""
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,4})", re.ASCII)
_FATAL = re.compile(r"(?i)(?<![a-z-])(?<!non )(?<!not )fatal\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRow:
    """One code of xid.toml."""

    code: int
    meaning: str
    action: str
    drain: str
    source: str
    cause: str = OTHER_XID


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
    cause: str | None = None


@cache
def read_xids() -> dict[int, XidRow]:
    rows: dict[int, XidRow] = {}
    for fields in map(dict, read_package_table("nodes/health/xid.toml")["xid"]):
        for code in fields.pop("codes"):
            rows[code] = XidRow(code=code, **fields)
    return rows


@cache
def read_rows() -> tuple[LineRow, ...]:
    """Return the rows of kernel_log.toml."""
    rows = read_package_table("nodes/health/kernel_log.toml")["line"]
    return tuple(LineRow(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows)


def find_row(text: str) -> tuple[int, str] | None:
    """Return the number of the first row of kernel_log.toml that matches a line, and the device that the line names."""
    for number, row in enumerate(read_rows()):
        if match := row.pattern.search(text):
            return number, next((name for name in match.groups() if name), "")
    return None


def is_fatal(text: str) -> bool:
    """Return whether the line of an Xid calls the error fatal, and not non-fatal."""
    return _FATAL.search(text) is not None


def find_requested(text: str) -> CheckSeverity | None:
    """Return the severity of the action that an Xid 154 requests; None for no action and for an unknown one."""
    change = RECOVERY_CHANGE.search(text)
    return RECOVERY_ACTIONS.get(change[1].lower()) if change else None


def find_cause(text: str) -> str | None:
    """Return the cause in the catalogue of the diagnosis that a line shows.

    Empty for a line that ends no attempt; None for a line about which these tables say nothing.
    """
    if match := XID_LINE.search(text):
        return _find_xid_cause(int(match[2]), match[3])
    place = find_row(text)
    return read_rows()[place[0]].cause if place else None


def _find_xid_cause(code: int, text: str) -> str:
    previous = _PREVIOUS.search(text)
    row = read_xids().get(int(previous[1]) if previous else code)
    if row is None:
        return OTHER_XID
    if previous:
        return row.cause  # that Xid ended the channel, whatever its own line says
    needs_fatal, needs_request = row.drain == "if-fatal", row.drain == "follow"
    if (needs_fatal and not is_fatal(text)) or (needs_request and find_requested(text) is None):
        return ""
    return row.cause
