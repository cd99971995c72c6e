"""Switches and requests: files by which people ask a train for something, without any right over its job.

A switch asks by its mere existence. What is in it is optional and never believed: who made it is the file's owner.
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
    """Save, stop, cancel what is queued."""
    PAUSE = "pause"
    """Save, stop, hold what is queued."""
    SAVE = "save"
    """Save, go on."""


class RequestKind(StrEnum):
    """What needs the owner's hand while nothing runs."""

    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Armed:
    """A switch that is there."""

    switch: Switch
    by: str
    """The file's owner."""
    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Something that a team-mate asks of the owner."""

    verb: RequestKind
    by: str
    """The file's owner."""
    since: datetime
    exclude: str
    path: Path


def path_of(run: RunDir, switch: Switch) -> Path:
    return run.switches / switch.value


def read(run: RunDir, switch: Switch) -> Armed | None:
    """The switch, if it is there. Raises OSError where that cannot be told, for that is not the same as not armed."""
    path = path_of(run, switch)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    why = str(_contents(path).get("why", ""))[:500]
    return Armed(switch=switch, by=user_name(found.st_uid), since=_since(found), why=why)


def find_armed(run: RunDir) -> list[Armed]:
    """Every switch that is there, the strongest first."""
    return [armed for switch in Switch if (armed := read(run, switch))]


def arm(run: RunDir, switch: Switch, *, why: str) -> bool:
    """Make the switch; whether it was not there before, for one that is armed is left as it is. Raises RunDirError."""
    if read(run, switch):
        return False
    _leave(run, path_of(run, switch), {"why": why})
    return True


def disarm(run: RunDir, switch: Switch) -> bool:
    """Take the switch away; whether it was there. Raises OSError."""
    try:
        path_of(run, switch).unlink()
    except FileNotFoundError:
        return False
    return True


def journal_switches(run: RunDir, journal: Journal, which: Iterable[Switch] = Switch) -> list[str]:
    """Journal which switches were made or taken away since the journal last said; what changed, in words.

    Raises OSError, RunDirError.
    """
    events, done = journal.events(), []
    for switch in which:
        there, known = read(run, switch), _is_known(events, switch)
        if there and not known:
            journal.append(EventKind.ARMED, switch=switch.value, by=there.by, why=there.why)
            done.append(f"{switch.value} switch armed by {there.by}")
        elif known and not there:
            journal.append(EventKind.DISARMED, switch=switch.value, by="")
            done.append(f"{switch.value} switch is gone")
    return done


def _is_known(events: Sequence[Event], switch: Switch) -> bool:
    """Whether the last that the journal says of a switch is that it was armed."""
    kinds = [e.kind for e in events if e.kind in {EventKind.ARMED, EventKind.DISARMED} and e.data["switch"] == switch]
    return kinds[-1:] == [EventKind.ARMED]


def request(run: RunDir, verb: RequestKind, *, exclude: str = "") -> Path:
    """Leave a request for the owner. Raises RunDirError."""
    path = run.requests / f"{verb.value}-{uuid.uuid4().hex[:12]}.json"
    _leave(run, path, {"verb": verb.value, "exclude": exclude})
    return path


def _leave(run: RunDir, path: Path, data: dict[str, str]) -> None:
    try:
        run.write(path, json.dumps(data) + "\n", mode=0o664)
    except RunDirError as error:
        if run.is_ours or not isinstance(error.__cause__, PermissionError):
            raise
        whose = user_name(run.path.stat().st_uid)
        raise RunDirError(
            error.message, hint=f"only {whose}, and the `group` that their site.toml names, may"
        ) from error


def list_requests(run: RunDir) -> list[Request]:
    """Every request that can be understood, the oldest first."""
    requests = [request for path in run.requests.glob("*.json") if (request := _request(path))]
    return sorted(requests, key=lambda request: (request.since, request.path.name))


def _request(path: Path) -> Request | None:
    fields = _contents(path)
    try:
        verb = RequestKind(fields.get("verb", ""))
        found = path.lstat()
    except (ValueError, OSError):
        return None
    exclude = fields.get("exclude", "")
    return Request(verb=verb, by=user_name(found.st_uid), since=_since(found), exclude=str(exclude), path=path)


def _contents(path: Path) -> dict[str, Any]:
    """What somebody wrote there, if it is short JSON. A pipe or a link to elsewhere is not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)
        given = json.loads(os.read(handle, 10_000)) if is_file else {}
    except (ValueError, OSError, RecursionError):
        return {}
    finally:
        os.close(handle)
    return given if isinstance(given, dict) else {}


def _since(found: os.stat_result) -> datetime:
    return datetime.fromtimestamp(found.st_mtime, UTC)
