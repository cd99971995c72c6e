"""The history of a train's alerts and of what people did about them, from the site's journals."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.alerts.ledger_state import SEVERITY
from opsctl.alerts.message import find_incident
from opsctl.base.findings import Level
from opsctl.state.files import find_matches, parse_json, read_range

MAX_TAIL_BYTES = 1 << 20
"""The history is read from the newest part of each journal."""
_ACTIONS = {"ack": "acknowledged", "accept": "accepted", "silence": "silenced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """A change of an alert, or what a person did or wrote about one."""

    at: datetime
    level: str
    """Empty for what a person did."""
    key: str
    text: str
    by: str = "opsctl"
    is_worse: bool = False


def read_alert_history(alerts: Path, train: str) -> list[AlertEvent]:
    """Return the events of the alerts of one train, the oldest first."""
    records: list[dict[str, Any]] = []
    for path in find_matches(alerts, "journal-*.jsonl"):
        with suppress(OSError):
            records += _parse_lines(read_range(path, -MAX_TAIL_BYTES, MAX_TAIL_BYTES)[0])
    keys = {find_incident(str(record["id"])): str(record["key"]) for record in records if "after" in record}
    events: list[AlertEvent] = []
    for record in records:
        with suppress(ValueError, KeyError, TypeError):
            events += _parse_record(record, train, keys)
    return sorted(events, key=lambda event: event.at)


def _parse_lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        with suppress(ValueError):
            record = parse_json(line)
            if isinstance(record, dict) and ("after" not in record or {"id", "key"} <= record.keys()):
                yield record


def _parse_record(record: Mapping[str, Any], train: str, keys: Mapping[str, str]) -> Iterator[AlertEvent]:
    """Yield the event of one line; nothing for lines of other trains and of other kinds."""
    incident = keys.get(find_incident(str(record.get("message", ""))), "")
    key = str(record.get("key") or record.get("pattern") or incident)
    if train not in {*key.split("/"), record.get("train")}:
        return
    at = datetime.fromisoformat(str(record["at"])).astimezone(UTC)
    by = str(record.get("by") or str(record.get("actor", "")).partition("@")[0])
    match record["kind"]:
        case "ack" | "accept" | "silence" as kind:
            text = f"{_ACTIONS[kind]} by {by}: {record.get('reason', '')}"
        case "answer":
            text = "; ".join(map(str, record["done"]))
        case "answer-not-understood":
            text = f"not understood: {record['text']}"
        case "page":
            text = str(record["done"])
        case _ if "after" in record:
            before, after = Level(record["before"]), Level(record["after"])
            is_worse = SEVERITY[after] > SEVERITY[before]
            yield AlertEvent(at=at, level=after.value, key=key, text=str(record["summary"]), is_worse=is_worse)
            return
        case _:
            return
    yield AlertEvent(at=at, level="", key=key, text=text, by=by)
