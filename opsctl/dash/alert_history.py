"""The history of a train's alerts, from the journals of alerts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.alerts.ledger_state import SEVERITY
from opsctl.base.findings import Level
from opsctl.state.files import find_matches, parse_json, read_range

MAX_TAIL_BYTES = 1 << 20
"""Read of each journal: its newest lines."""
MAX_HISTORY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """A change of severity, an acknowledgement or a silence."""

    at: datetime
    level: str
    key: str
    text: str
    is_worse: bool = False


def read_alert_history(alerts: Path, train: str) -> list[AlertEvent]:
    """Return the events of the alerts of one train, the oldest first."""
    events: list[AlertEvent] = []
    for path in find_matches(alerts, "journal-*.jsonl"):
        with suppress(OSError):
            events += _parse_lines(read_range(path, -MAX_TAIL_BYTES, MAX_TAIL_BYTES)[0], train)
    return sorted(events, key=lambda event: event.at)[-MAX_HISTORY:]


def _parse_lines(data: bytes, train: str) -> Iterator[AlertEvent]:
    for line in data.splitlines():
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            if event := _parse_record(parse_json(line), train):
                yield event


def _parse_record(record: dict[str, Any], train: str) -> AlertEvent | None:
    """Return the event of one line; None for lines of other trains and of other kinds."""
    key = str(record.get("key") or record.get("pattern") or "")
    if train not in key.split("/"):
        return None
    at = datetime.fromisoformat(str(record["at"])).astimezone(UTC)
    by = str(record.get("actor", "")).partition("@")[0]
    reason = str(record.get("reason", ""))
    if record["kind"] in {"ack", "accept", "silence"}:
        verb = {"ack": "acknowledged", "accept": "accepted", "silence": "silenced"}[record["kind"]]
        return AlertEvent(at=at, level="", key=key, text=f"{verb} by {by}: {reason}")
    if "after" not in record:
        return None
    before, after = Level(record["before"]), Level(record["after"])
    is_worse = SEVERITY[after] > SEVERITY[before]
    return AlertEvent(at=at, level=after.value, key=key, text=str(record["summary"]), is_worse=is_worse)
