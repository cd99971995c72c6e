"""What is open, in short and quickly read: `opsctl status` has no time for all that the ledger is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

OPEN = ("critical", "warning", "unknown")
"""The worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """One alert that people were told and that is not over, or that they would have been told but for a silence."""

    key: str
    level: str
    summary: str
    train: str
    """Empty for what belongs to no train."""
    since: str
    acknowledged: bool
    silenced_until: str = ""
    """Empty if it was not silenced when somebody last looked."""


def open_alerts(ledger: Path) -> list[OpenAlert]:
    """Those in the ledger at that path, the worst first; none if it cannot be read, for that is told elsewhere."""
    try:
        state = json.loads(ledger.read_bytes())
        found = list(_briefs(state["entries"].values(), state["silences"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(found, key=lambda brief: (OPEN.index(brief.level), brief.key))


def _briefs(entries: Sequence[dict[str, Any]], silences: Sequence[dict[str, Any]]) -> Iterator[OpenAlert]:
    for entry in entries:
        silence = next((fields for fields in silences if _covers(fields, entry)), None)
        if entry["level"] in OPEN or (silence and entry["seen"] in OPEN):
            yield _brief(entry, silence)


def _covers(silence: dict[str, Any], entry: dict[str, Any]) -> bool:
    in_force = datetime.fromisoformat(entry["checked_at"]) < datetime.fromisoformat(silence["until"])
    return in_force and fnmatchcase(entry["key"], silence["pattern"])


def _brief(entry: dict[str, Any], silence: dict[str, Any] | None) -> OpenAlert:
    finding = entry.get("finding") or {}
    is_told = entry["level"] in OPEN
    summary = str(finding.get("summary", "")) if is_told else f"{entry['key']} is {entry['seen']}"
    if silence:
        until = datetime.fromisoformat(silence["until"])
        summary += f" (silenced until {until:%Y-%m-%d %H:%M} UTC by {silence['by']}: {silence['why']})"
    return OpenAlert(
        key=str(entry["key"]), level=entry["level"] if is_told else entry["seen"], summary=summary,
        train=str(finding.get("train", "")), since=str(entry["since"]), acknowledged=bool(entry.get("acknowledged")),
        silenced_until=str(silence["until"]) if silence else "",
    )  # fmt: skip
