"""Switches and requests: files with which team members ask a train for an action, without permission over its job.

A switch is armed if its file exists. The contents are optional and untrusted; the user is the owner of the file.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from opsctl.errors import RunDirError
from opsctl.host.system import user_name
from opsctl.state.journal import Event, EventKind, Journal
from opsctl.state.run_dir import RunDir


class Switch(StrEnum):
    KILL = "kill"
    """Save, stop, cancel the queued tasks."""
    PAUSE = "pause"
    """Save, stop, hold the queued tasks."""
    SAVE = "save"
    """Save and continue."""


class RequestKind(StrEnum):
    """Actions that only the owner can carry out while no task runs."""

    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Armed:
    """An armed switch."""

    switch: Switch
    by: str
    """The file's owner."""
    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A team member's request to the owner."""

    verb: RequestKind
    by: str
    """The file's owner."""
    since: datetime
    exclude: str
    path: Path


def path_of(run: RunDir, switch: Switch) -> Path:
    """Return the path of a switch."""
    return run.switches / switch.value


def read(run: RunDir, switch: Switch) -> Armed | None:
    """Return the switch if armed, else None. Raises OSError if the state is unknown, which is not the same as None."""
    path = path_of(run, switch)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    why = str(_contents(path).get("why", ""))[:500]
    return Armed(switch=switch, by=user_name(status.st_uid), since=_modified(status), why=why)


def find_armed(run: RunDir) -> list[Armed]:
    """Return every armed switch, the strongest first. Raises OSError."""
    switches = [read(run, switch) for switch in Switch]
    return [armed for armed in switches if armed]


def arm(run: RunDir, switch: Switch, *, why: str) -> bool:
    """Arm the switch; return False if the switch was armed already, which changes nothing. Raises RunDirError."""
    if read(run, switch):
        return False
    _leave(run, path_of(run, switch), {"why": why})
    return True


def disarm(run: RunDir, switch: Switch) -> bool:
    """Disarm the switch; return whether the switch was armed. Raises OSError."""
    try:
        path_of(run, switch).unlink()
    except FileNotFoundError:
        return False
    return True


def journal_switches(run: RunDir, journal: Journal, switches: Iterable[Switch] = Switch) -> list[str]:
    """Journal the switches that were armed or disarmed since their last event; return the changes as sentences.

    Raises OSError, RunDirError.
    """
    events = journal.events()
    changes = []
    for switch in switches:
        armed = read(run, switch)
        was_armed = _was_armed(events, switch)
        if armed and not was_armed:
            journal.append(EventKind.ARMED, switch=switch.value, by=armed.by, why=armed.why)
            changes.append(f"{switch.value} switch armed by {armed.by}")
        elif was_armed and not armed:
            journal.append(EventKind.DISARMED, switch=switch.value, by="")
            changes.append(f"{switch.value} switch is gone")
    return changes


def _was_armed(events: Sequence[Event], switch: Switch) -> bool:
    """Whether the last event of the switch is ARMED."""
    was_armed = False
    for event in events:
        if event.kind in {EventKind.ARMED, EventKind.DISARMED} and event.data["switch"] == switch:
            was_armed = event.kind is EventKind.ARMED
    return was_armed


def request(run: RunDir, verb: RequestKind, *, exclude: str = "") -> Path:
    """Write a request to the owner. Raises RunDirError."""
    path = run.requests / f"{verb.value}-{uuid.uuid4().hex[:12]}.json"
    _leave(run, path, {"verb": verb.value, "exclude": exclude})
    return path


def _leave(run: RunDir, path: Path, data: dict[str, str]) -> None:
    try:
        run.write(path, json.dumps(data) + "\n", mode=0o664)
    except RunDirError as error:
        if run.is_ours or not isinstance(error.__cause__, PermissionError):
            raise
        owner = user_name(run.path.stat().st_uid)
        raise RunDirError(
            error.message, hint=f"only {owner}, and the `group` that their site.toml names, may"
        ) from error


def list_requests(run: RunDir) -> list[Request]:
    """Return every valid request, the oldest first."""
    parsed = [_read_request(path) for path in run.requests.glob("*.json")]
    requests = [request for request in parsed if request]
    return sorted(requests, key=lambda request: (request.since, request.path.name))


def _read_request(path: Path) -> Request | None:
    fields = _contents(path)
    try:
        verb = RequestKind(fields.get("verb", ""))
        status = path.lstat()
    except (ValueError, OSError):
        return None
    exclude = fields.get("exclude", "")
    return Request(verb=verb, by=user_name(status.st_uid), since=_modified(status), exclude=str(exclude), path=path)


def _contents(path: Path) -> dict[str, Any]:
    """Return the JSON object in a short regular file; empty for everything else. Pipes and links are not opened."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)
        contents = json.loads(os.read(handle, 10_000)) if is_file else {}
    except (ValueError, OSError, RecursionError):
        return {}
    finally:
        os.close(handle)
    return contents if isinstance(contents, dict) else {}


def _modified(status: os.stat_result) -> datetime:
    return datetime.fromtimestamp(status.st_mtime, UTC)
