"""The history of alerts and of what people did, from the journals of the site and of trains, which only grow."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from opsctl.alerts.message import find_incident
from opsctl.base.errors import cannot_read
from opsctl.base.findings import Severity
from opsctl.base.tables import read_package_table
from opsctl.state.events import KINDS, Event
from opsctl.state.files import list_names, parse_objects, read_range

MAX_TAIL_BYTES = 1 << 20
"""The history is read from the newest part of each journal."""
_DECISIONS = {
    table: {KINDS[kind]: text for kind, text in rows.items()}
    for table, rows in read_package_table("alerts/decisions.toml").items()
}
_ACTIONS = {"ack": "acknowledged", "accept": "accepted", "silence": "silenced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """A change of an alert, or what a person did or wrote about one."""

    at: datetime
    severity: str
    """Empty for what a person did."""
    key: str
    text: str
    by: str = "opsctl"
    channel: str = ""
    """Where a person acted: a switch, a request, the page, the name of a channel of alerts, or a host's commands."""
    is_worse: bool = False


def list_decisions(events: Iterable[Event], train: str) -> Iterator[AlertEvent]:
    """Yield what was decided about the train, with the user whose process wrote it, or who asked for it."""
    for event in events:
        if words := _DECISIONS["words"].get(type(event)):
            user, _, place = event.actor.partition("@")
            yield AlertEvent(
                at=event.when,
                severity="",
                key=train,
                text=words.format(event).removesuffix(": "),
                by=getattr(event, "by", "") or user,
                channel=_DECISIONS["channels"].get(type(event), f"opsctl on {place.partition(':')[0]}"),
            )


def read_alert_history(
    alerts: Path, train: str = "", *, tail_bytes: int = MAX_TAIL_BYTES
) -> tuple[list[AlertEvent], list[str]]:
    """Return the events of the alerts of one train, or of all, the oldest first; and what could not be read."""
    records, problems = _read_records(alerts, tail_bytes)
    keys = {find_incident(str(record["id"])): str(record["key"]) for record in records if "after" in record}
    events: list[AlertEvent] = []
    for record in records:
        with suppress(ValueError, KeyError, TypeError):
            events += _parse_record(record, train, keys)
    return sorted(events, key=lambda event: event.at), problems


def read_deliveries(alerts: Path, train: str, since: datetime) -> list[str]:
    """Return the channels that delivered an alert of a train, raised after `since`, but not in a combined message."""
    records = [row for row in _read_records(alerts, MAX_TAIL_BYTES)[0] if str(row.get("at")) >= since.isoformat()]
    ids = tuple(str(row["id"]) for row in records if "after" in row and train in str(row["key"]).split("/"))
    delivered = (row for row in records if row.get("kind") == "delivered")
    return [str(row.get("channel")) for row in delivered if ids and str(row.get("id")).endswith(ids)]


def _read_records(alerts: Path, tail_bytes: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of all journals, and a line for each journal that could not be read, or not from its begin."""
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    try:
        names = sorted(list_names(alerts)) if alerts.exists() else []
    except OSError as error:
        return [], [cannot_read(alerts, error).message]
    for path in (alerts / name for name in names if fnmatchcase(name, "journal-*.jsonl")):
        try:
            data, size = read_range(path, -tail_bytes, tail_bytes)
        except OSError as error:
            problems.append(cannot_read(path, error).message)
            continue
        problems += [f"{path}: only the newest {tail_bytes >> 20} MiB are read"] * (size > tail_bytes)
        rows = data.splitlines()[size > tail_bytes :]
        found = [row for row in parse_objects(data) if "after" not in row or {"id", "key"} <= row.keys()]
        problems += [f"{path}: {len(rows) - len(found)} lines cannot be read"] * (len(rows) > len(found))
        records += found
    return records, problems


def _parse_record(record: Mapping[str, Any], train: str, keys: Mapping[str, str]) -> Iterator[AlertEvent]:
    """Yield the event of one line; nothing for lines of other trains and of other kinds."""
    incident = keys.get(find_incident(str(record.get("message", ""))), "")
    key = str(record.get("key") or record.get("pattern") or incident)
    if train and train not in {*key.split("/"), record.get("train")}:
        return
    at = datetime.fromisoformat(str(record["at"])).astimezone(UTC)
    user, _, host = str(record.get("actor", "")).partition("@")
    by, channel = str(record.get("by") or user), str(record.get("channel", ""))
    match record["kind"]:
        case "ack" | "accept" | "silence" as kind:
            text = f"{_ACTIONS[kind]} by {by}: {record.get('reason', '')}"
            channel = f"opsctl on {host}" if by == user else ""
        case "answer":
            text = "; ".join(map(str, record["done"]))
        case "answer-not-understood":
            text = f"not understood: {record['text']}"
        case "answer-refused":
            by, text = str(record["sender"]), f"refused: {record['verb']}, of nobody in [alerts.people]"
        case "page":
            text, channel = str(record["done"]), "page"
        case _ if "after" in record:
            before, after = Severity(record["before"]), Severity(record["after"])
            is_worse = after.rank > before.rank
            yield AlertEvent(at=at, severity=after.value, key=key, text=str(record["summary"]), is_worse=is_worse)
            return
        case _:
            return
    yield AlertEvent(at=at, severity="", key=key or str(record.get("train", "")), text=text, by=by, channel=channel)
