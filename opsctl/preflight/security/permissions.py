"""What a security check reports, and the permissions of one path."""

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from opsctl.host.system import user_name
from opsctl.state.files import list_entries
from opsctl.state.trust import WRITABLE, find_hidden_root, find_writers, walk_components

MAX_DEPTH = 4
MAX_ENTRIES = 20_000
"""Checked below one directory."""
READABLE = 0o044
"""Permission bits of the group and of others."""


class SecuritySeverity(StrEnum):
    """UNSAFE fails `opsctl doctor --security`; UNKNOWN could not be checked."""

    OK = "ok"
    UNSAFE = "unsafe"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SecurityFinding:
    """One check of one thing."""

    check: str
    severity: SecuritySeverity
    result: str
    repair: str = ""
    """The command that repairs an unsafe thing, quoted for the shell."""


def ok(check: str, result: str) -> SecurityFinding:
    return SecurityFinding(check, SecuritySeverity.OK, result)


def unsafe(check: str, result: str, repair: str) -> SecurityFinding:
    return SecurityFinding(check, SecuritySeverity.UNSAFE, result, repair)


def unknown(check: str, result: str, repair: str = "") -> SecurityFinding:
    return SecurityFinding(check, SecuritySeverity.UNKNOWN, result, repair)


def label(check: str, found: SecurityFinding, *, what: str = "") -> SecurityFinding:
    """Return a finding about a path as one of a check."""
    return replace(found, check=check, result=f"{what}: {found.result}" if what else found.result)


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


def find_offences(path: Path, trusted: frozenset[int], *, shared: Path | None = None) -> list[SecurityFinding]:
    """Return why users outside `trusted` could replace or change `path`, along every component.

    A directory with the sticky bit, such as /tmp, is no offence: users cannot replace entries of other users there.
    `shared` is a directory in which several users make entries: the sticky bit repairs it.
    """
    offences: dict[Path, SecurityFinding] = {}
    mode = 0
    for place in walk_components(path):
        try:
            offence = find_offence(place, trusted, is_shared=place == shared)
            mode = place.lstat().st_mode
        except FileNotFoundError:
            if mode & WRITABLE:
                why = f"{place}: does not exist, and others can create the path"
                offences[place] = unsafe("", why, quote("mkdir", "-m", "755", place))
            break
        except OSError as error:
            offences[place] = _cannot_check(place, error)
            break
        if offence:
            offences[place] = offence
    return list(offences.values())


def find_offence(
    path: Path, trusted: frozenset[int], *, is_shared: bool = False, top: Path | None = None
) -> SecurityFinding | None:
    """Return why others than `trusted` control this one entry; the command repairs all below `top`. Raises OSError."""
    status, trusted = path.lstat(), trusted | find_hidden_root(path)
    if not (why := find_writers(status, trusted)):
        return None
    is_tree = top is not None and top.is_dir()
    target = top if top is not None and is_tree else path
    if status.st_uid not in trusted:
        owner = "root" if stat.S_ISDIR(status.st_mode) and not is_tree else user_name(os.geteuid())
        return unsafe("", f"{path}: {why}", as_root("chown", "-hR" if is_tree else "-h", owner, target))
    words = ["-R"] * is_tree + ["+t" if is_shared else "go-w"]
    return unsafe("", f"{path}: {why}", as_owner(target.lstat(), "chmod", *words, target))


def _cannot_check(path: Path, error: Exception) -> SecurityFinding:
    return unknown("", f"{path}: cannot be checked: {getattr(error, 'strerror', None) or error}")


def find_offences_below(path: Path, trusted: frozenset[int]) -> list[SecurityFinding]:
    """Return the offences of a directory and of its entries down to MAX_DEPTH, at most one for each top-level entry.

    Links are not followed. A tree of more than MAX_ENTRIES entries is an offence of its own, which is unknown.
    """
    offences: dict[Path, SecurityFinding] = {}
    for number, (top, place) in enumerate(_walk_tree(path)):
        if number >= MAX_ENTRIES:
            offences[place] = unknown("", f"{path}: more than {MAX_ENTRIES} entries: not all checked")
            break
        if top in offences:
            continue
        try:
            offence = find_offence(place, trusted, top=top)
        except FileNotFoundError:
            continue
        except OSError as error:
            offence = _cannot_check(place, error)
        if offence:
            offences[top] = offence
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
        return [Path(entry) for entry in list_entries(path, max_entries=MAX_ENTRIES)]
    except OSError:  # not a directory, gone, or closed: its own offence says what counts
        return []
