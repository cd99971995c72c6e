"""Requests: files with which team members ask for an action that only the owner of a train can carry out.

Everybody in the site's group can write here, so a request is read by a strict grammar with bounds. Anything else in the
directory is set aside by the owner.
"""

import json
import re
import stat
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from opsctl.base.errors import RunDirError
from opsctl.base.nodesets import is_node_list
from opsctl.host.system import user_name
from opsctl.state.files import list_entries, list_names, make_directory, parse_json, read_with_status
from opsctl.state.records import HEADER
from opsctl.state.run_dir import RunDir
from opsctl.state.trust import find_other_writers

MAX_REQUEST_BYTES = 4096
MAX_EXCLUDE_CHARS = 1000
MAX_READ, MAX_REFUSED = 1000, 20_000
"""Files read, and entries refused, at one look; later looks treat the others."""
MAX_SET_ASIDE = 100
"""Refused files that are kept for people to look at."""
_FILE = re.compile(r"[a-z]{1,20}-[0-9a-f]{12}\.json", re.ASCII)


class RequestKind(StrEnum):
    """Actions that only the owner can carry out while no task runs."""

    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A team member's request to the owner."""

    verb: RequestKind
    by: str
    """The file's owner."""
    since: datetime
    exclude: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest:
    """An entry of the directory that is no request."""

    path: Path
    by: str
    why: str

    def __str__(self) -> str:
        return f"{self.path.name!a:.60} by {self.by}: {self.why}"


def request(run: RunDir, verb: RequestKind, *, exclude: str = "") -> Path:
    """Write a request to the owner. Raises RunDirError."""
    path = run.requests / f"{verb.value}-{uuid.uuid4().hex[:12]}.json"
    leave(run, path, {"verb": verb.value, "train": run.name, "exclude": exclude})
    return path


def leave(run: RunDir, path: Path, data: dict[str, str]) -> None:
    """Write a file for the owner, as a member of the site's group. Raises RunDirError."""
    try:
        # Not writable by the group: its members remove the file with the rights of the directory, and rewrite nothing.
        run.write(path, json.dumps({**HEADER, **data}) + "\n", mode=0o644)
    except RunDirError as error:
        if run.is_ours or not isinstance(error.__cause__, PermissionError):
            raise
        owner = user_name(run.path.stat().st_uid)
        raise RunDirError(
            error.message, hint=f"only {owner}, and the `group` that their site.toml names, may"
        ) from error


def read_requests(run: RunDir) -> tuple[list[Request], list[BadRequest]]:
    """Return the valid requests, the oldest first, and the entries that are none. Raises OSError.

    Of many entries, those are refused at once whose names are not those of requests: they hide no request for long.
    """
    requests: list[Request] = []
    bad: list[BadRequest] = []
    names = list_names(run.requests) if run.requests.exists() else []
    visible = [name for name in names if not name.startswith(".")]  # the others are being written, or set aside
    named = [name for name in visible if _FILE.fullmatch(name)]
    others = [name for name in visible if not _FILE.fullmatch(name)]
    for name in (*named[:MAX_READ], *others[:MAX_REFUSED]):
        with suppress(FileNotFoundError):
            parsed = _parse(run, run.requests / name)
            requests.append(parsed) if isinstance(parsed, Request) else bad.append(parsed)
    return sorted(requests, key=lambda request: (request.since, request.path.name)), bad


def _parse(run: RunDir, path: Path) -> Request | BadRequest:
    status = path.lstat()
    by = user_name(status.st_uid)
    try:
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if not _FILE.fullmatch(path.name):
            raise ValueError("not the name of a request")
        status, data = read_with_status(path, MAX_REQUEST_BYTES)
        if why := find_other_writers(status):
            raise ValueError(f"perhaps not written by {by}: {why}")
        fields = parse_json(data)
        return Request(
            verb=_verb(fields, run),
            by=by,
            since=datetime.fromtimestamp(status.st_mtime, UTC),
            exclude=_exclude(fields),
            path=path,
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        return BadRequest(path=path, by=by, why=str(error.strerror))
    except (ValueError, OverflowError) as error:
        return BadRequest(path=path, by=by, why=f"{error!s:.100}")


def _verb(fields: Any, run: RunDir) -> RequestKind:
    # A field of a newer version may narrow what is asked for, so the request is refused.
    if not isinstance(fields, dict) or fields.keys() - HEADER.keys() != {"verb", "train", "exclude"}:
        raise ValueError("not a request")
    if fields["train"] != run.name:
        raise ValueError("made for another train")
    if fields["verb"] not in list(RequestKind):
        raise ValueError("not a known verb")
    return RequestKind(fields["verb"])


def _exclude(fields: dict[str, Any]) -> str:
    exclude = fields["exclude"]
    if not isinstance(exclude, str) or len(exclude) > MAX_EXCLUDE_CHARS or not is_node_list(exclude):
        raise ValueError("exclude is not a node list")
    return exclude


def set_aside(run: RunDir, bad: Sequence[BadRequest]) -> str:
    """Move entries that are no requests out of the way; return one line about them. Raises OSError."""
    place = run.path / "refused-requests"
    make_directory(place, 0o755)
    room = MAX_SET_ASIDE - len(list_entries(place, max_entries=MAX_SET_ASIDE))
    for number, entry in enumerate(bad):
        _move(entry.path, place if number < room else None)
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return f"set aside in {run.requests}: {'; '.join(map(str, bad[:3]))}{more}"


def _move(path: Path, place: Path | None) -> None:
    with suppress(FileNotFoundError):
        try:
            path.rename(place / f"{uuid.uuid4().hex[:8]}") if place else path.unlink()
        except OSError:
            # Another user's directory cannot leave its parent, nor be removed while it has entries.
            path.rename(path.with_name(f".refused-{uuid.uuid4().hex[:8]}"))
