"""The open alerts, read quickly: `opsctl status` does not parse the whole ledger into its types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from opsctl.state.files import MAX_STATE_BYTES, read_json

OPEN = ("critical", "warning", "unknown")
"""Severities of open alerts, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """One alert that was sent and is not resolved, or that a silence kept from being sent."""

    key: str
    level: str
    summary: str
    train: str
    """Empty for an alert that belongs to no train."""
    since: str
    acknowledged: bool
    silenced_until: str = ""
    """Empty if no silence covered the alert at its last check."""


def open_alerts(ledger: Path) -> list[OpenAlert]:
    """Return the open alerts of the ledger at `ledger`, the worst first.

    An unreadable ledger gives an empty list; `opsctl doctor` reports the ledger.
    """
    try:
        state = read_json(ledger, MAX_STATE_BYTES)
        alerts = list(_select_open(state["entries"].values(), state["silences"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(alerts, key=lambda alert: (OPEN.index(alert.level), alert.key))


def _select_open(entries: Sequence[dict[str, Any]], silences: Sequence[dict[str, Any]]) -> Iterator[OpenAlert]:
    for entry in entries:
        silence = next((fields for fields in silences if _covers(fields, entry)), None)
        if entry["level"] in OPEN or (silence and entry["latest_level"] in OPEN):
            yield _parse_alert(entry, silence)


def _covers(silence: dict[str, Any], entry: dict[str, Any]) -> bool:
    checked_at, since = datetime.fromisoformat(entry["checked_at"]), silence.get("since")
    in_force = checked_at < datetime.fromisoformat(silence["until"])
    in_force = in_force and (not since or datetime.fromisoformat(since) <= checked_at)
    return in_force and fnmatchcase(entry["key"], silence["pattern"])


def _parse_alert(entry: dict[str, Any], silence: dict[str, Any] | None) -> OpenAlert:
    finding = entry.get("finding") or {}
    level, summary = entry["level"], str(finding.get("summary", ""))
    if level not in OPEN:
        level = entry["latest_level"]
        summary = f"{entry['key']} is {level}"
    if silence:
        until = datetime.fromisoformat(silence["until"])
        summary += f" (silenced until {until:%Y-%m-%d %H:%M} UTC by {silence['by']}: {silence['reason']})"
    return OpenAlert(
        key=str(entry["key"]),
        level=level,
        summary=summary,
        train=str(finding.get("train", "")),
        since=str(entry["since"]),
        acknowledged=bool(entry.get("acknowledged")),
        silenced_until=str(silence["until"]) if silence else "",
    )
