"""Switches: files with which team members ask a train for an action, without permission over its job.

A switch is armed if its file exists. The contents are optional and untrusted; the user is the owner of the file. In a
directory where others can rename files, the owner armed the switch only if the file says that it was made for it, and
if nobody else could have written or renamed it since.
"""

import errno
import os
import stat
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from opsctl.host.system import user_name
from opsctl.state.events import Event, SwitchArmed, SwitchDisarmed
from opsctl.state.files import parse_json, read_with_status
from opsctl.state.journal import Journal
from opsctl.state.requests import Request, RequestKind, leave, request
from opsctl.state.run_dir import RunDir
from opsctl.state.trust import find_other_writers

__all__ = ["Request", "RequestKind", "request"]

MAX_SWITCH_BYTES = 10_000
MAX_REASON_CHARS = 500


class Switch(StrEnum):
    KILL = "kill"
    """Save, stop, cancel the queued tasks."""
    PAUSE = "pause"
    """Save, stop, hold the queued tasks."""
    SAVE = "save"
    """Save and continue."""
    RESTART = "restart"
    """Save, stop, and start again in the same allocation. The guard disarms it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Armed:
    """An armed switch."""

    switch: Switch
    by: str
    """The file's owner, if the owner armed the switch, as far as known."""
    since: datetime
    why: str


def path_of(run: RunDir, switch: Switch) -> Path:
    return run.switches / switch.value


def read(run: RunDir, switch: Switch) -> Armed | None:
    """Return the switch if armed, else None. Raises OSError if the state is unknown, which is not the same as None."""
    path = path_of(run, switch)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    fields, why_not = _read_contents(path)
    is_signed = not why_not and (fields.get("switch"), fields.get("train")) == (switch.value, run.name)
    owner = user_name(status.st_uid)
    return Armed(
        switch=switch,
        by=owner if is_signed or not run.switches.stat().st_mode & 0o022 else f"somebody (with a file of {owner})",
        since=_modified(status),
        why=_why(fields, status),
    )


def _why(fields: dict[str, Any], status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory in place of the switch; disarming removes it"
    why = fields.get("why", "")
    return why[:MAX_REASON_CHARS] if isinstance(why, str) else ""


def find_armed(run: RunDir) -> list[Armed]:
    """Return every armed switch, the strongest first. Raises OSError."""
    switches = [read(run, switch) for switch in Switch]
    return [armed for armed in switches if armed]


def arm(run: RunDir, switch: Switch, *, why: str) -> bool:
    """Arm the switch; return False if the switch was armed already, which changes nothing. Raises RunDirError."""
    if read(run, switch):
        return False
    leave(run, path_of(run, switch), {"why": why, "switch": switch.value, "train": run.name})
    return True


def disarm(run: RunDir, switch: Switch) -> bool:
    """Disarm the switch; return whether the switch was armed. Raises OSError."""
    path = path_of(run, switch)
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            _remove_directory(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove_directory(path: Path) -> None:
    """Remove a directory; rename it if it has entries, which may be another user's."""
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        path.rename(path.with_name(f".cleared-{uuid.uuid4().hex[:8]}"))


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
            journal.append(SwitchArmed(switch=switch.value, by=armed.by, why=armed.why))
            changes.append(f"{switch.value} switch armed by {armed.by}")
        elif was_armed and not armed:
            journal.append(SwitchDisarmed(switch=switch.value, by=""))
            changes.append(f"{switch.value} switch is gone")
    return changes


def _was_armed(events: Sequence[Event], switch: Switch) -> bool:
    """Whether the last event of the switch is its arming."""
    was_armed = False
    for event in events:
        if isinstance(event, SwitchArmed | SwitchDisarmed) and event.switch == switch:
            was_armed = isinstance(event, SwitchArmed)
    return was_armed


def _read_contents(path: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a short regular file, and why others than its owner could have written it.

    The object is empty for everything else. Pipes and links are not opened.
    """
    try:
        status, data = read_with_status(path, MAX_SWITCH_BYTES)
        contents = parse_json(data)
    except (ValueError, OSError):
        return {}, "not readable"
    return contents if isinstance(contents, dict) else {}, find_other_writers(status)


def _modified(status: os.stat_result) -> datetime:
    """Return the time of the last change; the epoch for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(status.st_mtime, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
