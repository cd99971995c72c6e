"""The one reader of space, inodes and quotas: what is used, what may be, and who uses most."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from opsctl.errors import OpsctlError
from opsctl.host.system import spawn
from opsctl.ports import Runner, TimedOut
from opsctl.settings.watch import Filesystem
from opsctl.units import parse_size

TIMEOUT = 20.0
"""Seconds for df and for quota commands."""
LONGEST_DU = timedelta(hours=24)
"""A measurement that has not ended by then has died."""
_DU = """set -u
trap 'rm -f "$2.running"' EXIT
nice du -xd1 -B1 -- "$1" >"$2.bytes" 2>/dev/null
nice du -xd1 --inodes -- "$1" >"$2.inodes" 2>/dev/null
[ -s "$2.bytes" ] && { sed 's/^/B /' "$2.bytes"; sed 's/^/I /' "$2.inodes"; } >"$2.new" && mv "$2.new" "$2"
rm -f "$2.bytes" "$2.inodes"
"""
"""What may not be read is left out, and du says so by its exit code: that is no reason to have no figure at all."""


class MeasurementFailed(OpsctlError):
    """There is no figure, or none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is used of a file system, and what may be. None is not known, or no limit."""

    used: int | None = None
    limit: int | None = None
    inodes_used: int | None = None
    inodes_limit: int | None = None
    percent: float | None = None
    """Where that is all that the system says."""
    inodes_percent: float | None = None
    at: datetime | None = None
    """When it was measured, if not now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """What one user has in a directory, as far as it may be read."""

    name: str
    size: int
    inodes: int
    places: tuple[str, ...]
    """The largest first."""


def read(filesystem: Filesystem, runner: Runner, *, keep: Path, now: datetime) -> Space:
    """Measure it. `keep` is a directory for what is measured in the background. Raises NotMeasured, OSError."""
    if filesystem.by == "statvfs":
        return read_statvfs(Path(filesystem.path))
    if filesystem.by == "df":
        return read_df(_output(runner, ("df", "-B1", "--output=used,avail,iused,iavail", "--", filesystem.path)))
    if filesystem.by == "command":
        return read_pattern(_output(runner, filesystem.command), filesystem.pattern)
    return read_du(filesystem, keep=keep, now=now)


def read_statvfs(path: Path) -> Space:
    """As df says it: what root keeps for itself counts as used. Raises OSError."""
    found = os.statvfs(path)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    inodes = found.f_files - found.f_ffree
    return Space(
        used=used, limit=used + found.f_bavail * found.f_frsize, inodes_used=inodes if found.f_files else None,
        inodes_limit=inodes + found.f_favail if found.f_files else None,
    )  # fmt: skip


def read_df(text: str) -> Space:
    """`df -B1 --output=used,avail,iused,iavail`. Raises NotMeasured."""
    rows = [line.split() for line in text.splitlines()[1:]]
    if len(rows) != 1 or len(rows[0]) != 4:
        raise MeasurementFailed(f"df said {text.strip()[:200]!r}")
    used, free, inodes, inodes_free = (int(word) if word.isdigit() else None for word in rows[0])
    has_inodes = inodes is not None and inodes_free is not None and inodes + inodes_free > 0
    return Space(
        used=used,
        limit=used + free if used is not None and free is not None else None,
        inodes_used=inodes if has_inodes else None,
        inodes_limit=(inodes or 0) + (inodes_free or 0) if has_inodes else None,
    )


def read_pattern(text: str, pattern: str) -> Space:
    """The named groups of a quota command's answer. Raises NotMeasured."""
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise MeasurementFailed(f"the pattern finds nothing in {text.strip()[:200]!r}")
    said = {name: value for name, value in match.groupdict().items() if value is not None}
    try:
        sizes = {name: parse_size(said[name]) for name in ("used", "limit") if name in said}
        counts = {name: parse_size(said[name]) for name in ("inodes_used", "inodes_limit") if name in said}
        shares = {name: float(said[name].rstrip("%")) for name in ("percent", "inodes_percent") if name in said}
        at = _time(said["at"]) if "at" in said else None
    except (ValueError, OverflowError, OSError) as error:  # of a time that no calendar has
        raise MeasurementFailed(f"{match[0][:200]!r}: {error}") from error
    return Space(
        used=sizes.get("used"), limit=sizes.get("limit"), inodes_used=counts.get("inodes_used"),
        inodes_limit=counts.get("inodes_limit"), percent=shares.get("percent"),
        inodes_percent=shares.get("inodes_percent"), at=at,
    )  # fmt: skip


def _time(text: str) -> datetime:
    """Seconds since the epoch, or ISO 8601; without a zone, it is this machine's."""
    return datetime.fromtimestamp(int(text), UTC) if text.isdigit() else datetime.fromisoformat(text).astimezone(UTC)


def read_du(filesystem: Filesystem, *, keep: Path, now: datetime) -> Space:
    """The last measurement, and begin another if that is old. Raises NotMeasured until the first has ended."""
    every = timedelta(minutes=filesystem.every_minutes)
    path = measure(filesystem.path, keep=keep, name=filesystem.name, now=now, every=every)
    sizes, inodes = _parse_du(path)
    whole = filesystem.path.rstrip("/") or "/"
    if whole not in sizes:
        raise MeasurementFailed(f"du has not measured {filesystem.path} yet")
    return Space(
        used=sizes[whole], limit=filesystem.limit, inodes_used=inodes.get(whole),
        inodes_limit=filesystem.inode_limit, at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )  # fmt: skip


def measure(directory: str, *, keep: Path, name: str, now: datetime, every: timedelta) -> Path:
    """Have du measure a directory in the background, unless the last measurement is newer than `every`, or one goes
    on. Where the figures are, or will be. Raises OSError."""
    path = keep / f"du-{quote(name, safe='')}"
    if _age(path, now) < every or _age(running := path.with_name(f"{path.name}.running"), now) < LONGEST_DU:
        return path
    keep.mkdir(parents=True, exist_ok=True)
    running.touch()
    spawn(("sh", "-c", _DU, "sh", directory.rstrip("/") or "/", str(path)), log=Path(os.devnull))
    return path


def _age(path: Path, now: datetime) -> timedelta:
    try:
        return now - datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return timedelta.max


def _parse_du(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes and inodes of a directory and of each directory in it."""
    found: dict[str, dict[str, int]] = {"B": {}, "I": {}}
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="surrogateescape").splitlines():
            kind, _, rest = line.partition(" ")
            count, _, place = rest.partition("\t")
            if kind in found and count.isdigit():
                found[kind][place] = int(count)
    return found["B"], found["I"]


def find_largest(path: Path, directory: str, *, most: int = 5) -> list[User]:
    """Who uses most, from a measurement: by the owners of the directories in it. Empty if there is none yet."""
    sizes, inodes = _parse_du(path)
    whole = directory.rstrip("/") or "/"
    places: dict[str, list[str]] = defaultdict(list)
    for place in sizes.keys() - {whole}:
        places[_owner(place)].append(place)
    users = [
        User(
            name=name, size=sum(sizes[their] for their in theirs), inodes=sum(inodes.get(their, 0) for their in theirs),
            places=tuple(sorted(theirs, key=lambda each: -sizes[each])),
        )
        for name, theirs in places.items()
    ]  # fmt: skip
    return sorted(users, key=lambda user: -user.size)[:most]


def _owner(place: str) -> str:
    try:
        uid = os.stat(place).st_uid  # noqa: PTH116 (du's own bytes, which need be no text)
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
    except OSError:
        return "?"


def _output(runner: Runner, argv: tuple[str, ...]) -> str:
    try:
        done = runner.run(argv, timeout=TIMEOUT, env={"LC_ALL": "C"})
    except TimedOut as error:
        raise MeasurementFailed(str(error)) from error
    if done.code != 0 and not done.out.strip():
        raise MeasurementFailed(f"{argv[0]} failed ({done.code}): {done.err.strip()[:200]}")
    return done.out
