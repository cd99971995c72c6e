"""What a security check reports, and the permissions of one path."""

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from opsctl.host.system import user_name
from opsctl.state.trust import WRITABLE, find_writers, walk_components

MAX_DEPTH = 4
MAX_ENTRIES = 20_000
"""Checked below one directory."""
READABLE = 0o044
"""Permission bits of the group and of others."""


class SecurityLevel(StrEnum):
    """UNSAFE fails `opsctl doctor --security`; UNKNOWN could not be checked."""

    OK = "ok"
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SecurityFinding:
    """One check of one thing."""

    check: str
    level: SecurityLevel
    result: str
    repair: str = ""
    """The command that repairs an unsafe thing, quoted for the shell."""


@dataclass(frozen=True, slots=True)
class Offence:
    """Why a user other than root and us controls a path, with the command that ends that."""

    path: Path
    why: str
    repair: str
    is_unknown: bool = False
    is_foreign: bool = False
    """Whether the path belongs to another user."""


def ok(check: str, result: str) -> SecurityFinding:
    return SecurityFinding(check, SecurityLevel.OK, result)


def unsafe(check: str, result: str, repair: str) -> SecurityFinding:
    return SecurityFinding(check, SecurityLevel.UNSAFE, result, repair)


def unknown(check: str, result: str, repair: str = "") -> SecurityFinding:
    return SecurityFinding(check, SecurityLevel.UNKNOWN, result, repair)


def from_offence(check: str, offence: Offence, *, what: str = "") -> SecurityFinding:
    level = SecurityLevel.UNKNOWN if offence.is_unknown else SecurityLevel.UNSAFE
    prefix = f"{what}: " if what else ""
    return SecurityFinding(check, level, f"{prefix}{offence.path}: {offence.why}", offence.repair)


def quote(*words: str | Path) -> str:
    """Return a command for a shell. A name with control characters is quoted so that a terminal shows it harmlessly."""
    return " ".join(_quote(str(word)) for word in words)


def _quote(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(_escape(character) for character in word)
    return f"$'{escaped}'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def as_root(*words: str | Path) -> str:
    return quote(*(() if os.geteuid() == 0 else ("sudo",)), *words)


def as_owner(status: os.stat_result, *words: str | Path) -> str:
    """Return the command that changes a file: with sudo, unless the file is ours."""
    return quote(*words) if os.geteuid() == status.st_uid else as_root(*words)


def find_offences(path: Path, trusted: frozenset[int], *, shared: Path | None = None) -> list[Offence]:
    """Return why users outside `trusted` could replace or change `path`, along every component.

    A directory with the sticky bit, such as /tmp, is no offence: users cannot replace entries of other users there.
    `shared` is a directory in which several users make entries: the sticky bit repairs it.
    """
    offences: dict[Path, Offence] = {}
    mode = 0
    for place in walk_components(path):
        try:
            status = place.lstat()
            offence = _find_offence(place, status, trusted, is_shared=place == shared)
            mode = status.st_mode
        except FileNotFoundError:
            offence = _find_squatters(place, mode)
        except (OSError, RuntimeError) as error:
            offence = Offence(place, f"cannot be checked: {_why(error)}", "", is_unknown=True)
        if offence:
            offences[place] = offence
        if not os.path.lexists(place):
            break
    return list(offences.values())


def find_offence(path: Path, trusted: frozenset[int]) -> Offence | None:
    """Return why users outside `trusted` control this one entry. Raises OSError."""
    return _find_offence(path, path.lstat(), trusted, is_shared=False)


def _find_offence(path: Path, status: os.stat_result, trusted: frozenset[int], *, is_shared: bool) -> Offence | None:
    why = find_writers(status, trusted)
    if not why:
        return None
    if status.st_uid not in trusted:
        owner = "root" if stat.S_ISDIR(status.st_mode) else own_name()
        return Offence(path, why, as_root("chown", "-h", owner, path), is_foreign=True)
    return Offence(path, why, as_owner(status, "chmod", "+t" if is_shared else "go-w", path))


def _find_squatters(path: Path, parent_mode: int) -> Offence | None:
    """Return the offence of a missing path in a directory in which others can make it."""
    if not parent_mode & WRITABLE:
        return None
    return Offence(path, "does not exist, and others can create the path", quote("mkdir", "-m", "755", path))


def own_name() -> str:
    return user_name(os.geteuid())


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def find_offences_below(path: Path, trusted: frozenset[int]) -> list[Offence]:
    """Return the offences of a directory and of its entries down to MAX_DEPTH, at most one for each top-level entry.

    Links are not followed. A tree of more than MAX_ENTRIES entries is an offence of its own, which is unknown.
    """
    offences: dict[Path, Offence] = {}
    for number, (top, place) in enumerate(_walk_tree(path)):
        if number >= MAX_ENTRIES:
            offences[place] = Offence(path, f"more than {MAX_ENTRIES} entries: not all checked", "", is_unknown=True)
            break
        if top in offences:
            continue
        try:
            offence = find_offence(place, trusted)
        except FileNotFoundError:
            continue
        except OSError as error:
            offence = Offence(place, f"cannot be checked: {_why(error)}", "", is_unknown=True)
        if offence:
            offences[top] = _repair_tree(offence, top)
    return list(offences.values())


def _walk_tree(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directory itself, then each entry below, as pairs of top-level entry and entry."""
    yield path, path
    waiting = [(entry, entry, 1) for entry in _list(path)]
    while waiting:
        top, place, depth = waiting.pop()
        yield top, place
        if depth < MAX_DEPTH and not place.is_symlink():
            waiting += [(top, entry, depth + 1) for entry in _list(place)]


def _list(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)]
    except OSError:  # not a directory, gone, or closed: its own offence says what counts
        return []


def _repair_tree(offence: Offence, top: Path) -> Offence:
    """Let the command repair the whole top-level entry: there may be more offences below."""
    if offence.is_unknown or (offence.path == top and not top.is_dir()):
        return offence
    if offence.is_foreign:
        return replace(offence, repair=as_root("chown", "-hR", own_name(), top))
    return replace(offence, repair=as_owner(top.lstat(), "chmod", "-R", "go-w", top))
