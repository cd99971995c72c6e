"""Measure space, inodes and quotas, and find the largest users."""

import contextlib
import os
import pwd
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Runner, TimedOut
from opsctl.base.units import parse_size
from opsctl.host.system import spawn
from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.watch import Filesystem
from opsctl.state.files import make_directories, touch
from opsctl.trainer.bounded_files import read_bounded

TIMEOUT_S = 20.0
"""For df and for quota commands."""
MAX_OUTPUT_BYTES = 64 << 10
"""Searched of the output of a quota command."""
MAX_USAGE_BYTES = 256 << 20
MAX_DU_TIME = timedelta(hours=24)
"""A measurement that takes longer counts as dead."""


class MeasurementFailed(OpsctlError):
    """The measurement gave no figures, or none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Usage and limits of a file system, in bytes. None means unknown, or no limit."""

    used: int | None = None
    limit: int | None = None
    inodes_used: int | None = None
    inodes_limit: int | None = None
    percent: float | None = None
    """Set if the system reports only a percentage."""
    inodes_percent: float | None = None
    at: datetime | None = None
    """Time of the measurement, if not now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The usage of one user in a directory, as far as readable."""

    name: str
    size: int
    inodes: int
    places: tuple[str, ...]
    """The largest first."""


def read(filesystem: Filesystem, runner: Runner, *, keep: Path, now: datetime) -> Space:
    """Measure a file system. `keep` is the directory of background measurements. Raises MeasurementFailed, OSError."""
    if filesystem.by == "statvfs":
        return read_statvfs(Path(filesystem.path))
    if filesystem.by == "command":
        return read_pattern(_output(runner, filesystem.command), filesystem.pattern)
    return read_du(filesystem, keep=keep, now=now)


def read_statvfs(path: Path) -> Space:
    """Measure by statvfs. As in df, blocks reserved for root are in neither figure. Raises OSError."""
    stats = os.statvfs(path)
    used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
    inodes = stats.f_files - stats.f_ffree
    return Space(
        used=used,
        limit=used + stats.f_bavail * stats.f_frsize,
        inodes_used=inodes if stats.f_files else None,
        inodes_limit=inodes + stats.f_favail if stats.f_files else None,
    )


def read_pattern(text: str, pattern: str) -> Space:
    """Parse the output of a quota command by the named groups of `pattern`. Raises MeasurementFailed."""
    words = compile_bounded(f"(?m){pattern}").search(text, MAX_OUTPUT_BYTES)
    if words is None:
        raise MeasurementFailed(f"the pattern finds nothing in {text.strip()[:200]!r}")
    try:
        values: dict[str, Any] = {name: parse(words[name]) for name, parse in _FIELDS.items() if name in words}
    except (ValueError, OverflowError, OSError) as error:  # also for a time outside of the calendar
        raise MeasurementFailed(f"{str(words)[:200]}: {error!s:.200}") from error
    return Space(**values)


def _parse_time(text: str) -> datetime:
    """Parse seconds since the epoch or ISO 8601; a time without a zone is in this machine's zone."""
    return datetime.fromtimestamp(int(text), UTC) if text.isdigit() else datetime.fromisoformat(text).astimezone(UTC)


_FIELDS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("used", "limit", "inodes_used", "inodes_limit"), parse_size),
    **dict.fromkeys(("percent", "inodes_percent"), lambda text: float(text.rstrip("%"))),
    "at": _parse_time,
}
"""The groups of a pattern, which are fields of Space."""


def read_du(filesystem: Filesystem, *, keep: Path, now: datetime) -> Space:
    """Return the last measurement; start another if the last is old. Raises MeasurementFailed before the first."""
    every = timedelta(minutes=filesystem.every_minutes)
    path = measure(filesystem.path, keep=keep, name=filesystem.name, now=now, every=every)
    sizes, inodes = _parse_du(path)
    whole = filesystem.path.rstrip("/") or "/"
    if whole not in sizes:
        raise MeasurementFailed(f"du has not measured {filesystem.path} yet")
    return Space(
        used=sizes[whole],
        limit=filesystem.limit,
        inodes_used=inodes.get(whole),
        inodes_limit=filesystem.inode_limit,
        at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )


def measure(directory: str, *, keep: Path, name: str, now: datetime, every: timedelta) -> Path:
    """Start du in the background, unless the last measurement is newer than `every` or du is running.

    Return the file with the present or future figures. Raises OSError.
    """
    path = keep / f"du-{quote(name, safe='')}"
    running = path.with_name(f"{path.name}.running")
    if _age(path, now) < every or _age(running, now) < MAX_DU_TIME:
        return path
    make_directories(keep)
    touch(running)
    script = str(Path(__file__).with_name("disk_usage.sh"))
    spawn(("sh", script, directory.rstrip("/") or "/", str(path)), log=Path(os.devnull))
    return path


def _age(path: Path, now: datetime) -> timedelta:
    try:
        return now - datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return timedelta.max


def _parse_du(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes and inodes of a directory and of its subdirectories, by path."""
    counts: dict[str, dict[str, int]] = {"B": {}, "I": {}}
    with contextlib.suppress(OSError):
        for line in read_bounded(path, MAX_USAGE_BYTES).decode(errors="surrogateescape").splitlines():
            kind, _, rest = line.partition(" ")
            count, _, place = rest.partition("\t")
            if kind in counts and re.fullmatch(r"\d{1,20}", count, re.ASCII):
                counts[kind][place] = int(count)
    return counts["B"], counts["I"]


def find_largest(path: Path, directory: str, *, most: int = 5) -> list[User]:
    """Return the owners of the largest subdirectories, from a measurement by du; empty without a measurement."""
    sizes, inodes = _parse_du(path)
    whole = directory.rstrip("/") or "/"
    places: dict[str, list[str]] = defaultdict(list)
    for place in sizes.keys() - {whole}:
        places[_owner(place)].append(place)
    users = [
        User(
            name=name,
            size=sum(sizes[place] for place in owned),
            inodes=sum(inodes.get(place, 0) for place in owned),
            places=tuple(sorted(owned, key=lambda place: -sizes[place])),
        )
        for name, owned in places.items()
    ]
    return sorted(users, key=lambda user: -user.size)[:most]


def _owner(place: str) -> str:
    try:
        uid = os.stat(place).st_uid  # noqa: PTH116 (a path from du, whose bytes may not be text)
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
    except (OSError, ValueError):  # ValueError: NUL
        return "?"


def _output(runner: Runner, argv: tuple[str, ...]) -> str:
    try:
        done = runner.run(argv, timeout=TIMEOUT_S, env={"LC_ALL": "C"})
    except TimedOut as error:
        raise MeasurementFailed(str(error)) from error
    if done.code != 0 and not done.out.strip():
        raise MeasurementFailed(f"{argv[0]} failed ({done.code}): {done.err.strip()[:200]}")
    return done.out
