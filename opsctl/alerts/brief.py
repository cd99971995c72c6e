"""What is open, in short and quickly read: `opsctl status` has no time for all that the ledger is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPEN = ("critical", "warning", "unknown")
"""The worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """One alert that people were told and that is not over."""

    key: str
    level: str
    summary: str
    train: str
    """Empty for what belongs to no train."""
    since: str
    acknowledged: bool


def open_alerts(ledger: Path) -> list[Brief]:
    """Those in the ledger at that path, the worst first; none if it cannot be read, for that is told elsewhere."""
    try:
        entries = json.loads(ledger.read_bytes())["entries"].values()
        found = [_brief(each) for each in entries if each["level"] in OPEN]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(found, key=lambda brief: (OPEN.index(brief.level), brief.key))


def _brief(entry: dict[str, Any]) -> Brief:
    finding = entry.get("finding") or {}
    return Brief(
        key=str(entry["key"]), level=entry["level"], summary=str(finding.get("summary", "")),
        train=str(finding.get("train", "")), since=str(entry["since"]), acknowledged=bool(entry.get("acknowledged")),
    )  # fmt: skip
