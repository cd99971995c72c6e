"""Whose host keys are believed: OpenSSH's known_hosts, with its patterns, hashes and revocations."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from paramiko import PKey, SSHException
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey


class HostKeyChanged(Exception):
    """The host shows another key than the one that is known, or one that was revoked."""


class HostUnknown(Exception):
    """Nobody has ever said which key this host has."""


@dataclass(frozen=True, slots=True)
class KnownHostLine:
    names: tuple[str, ...]
    key: PKey
    revoked: bool


@dataclass(slots=True)
class KnownHosts:
    """The lines of all files together; new ones go to the first. Safe to use from many threads."""

    files: Sequence[Path]
    accept_new: bool = False
    _lines: list[KnownHostLine] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for file in self.files:
            with suppress(OSError):
                self._lines += parse(file.read_text(errors="replace"))

    def kinds(self, name: str) -> list[str]:
        """The kinds of keys that are known of this host, so that it can be asked for one of them."""
        with self._lock:
            return list(dict.fromkeys(line.key.get_name() for line in self._of(name) if not line.revoked))

    def check(self, name: str, key: PKey) -> None:
        """Raises HostKeyChanged or HostUnknown unless this is the host's key, or a new host may be believed."""
        with self._lock:
            lines = self._of(name)
            same = [line for line in lines if line.key == key]
            if any(line.revoked for line in same):
                raise HostKeyChanged("known_hosts says that its host key was revoked")
            if same:
                return
            if lines:
                raise HostKeyChanged(f"its host key is another than known_hosts has: {key.fingerprint}")
            if not self.accept_new:
                raise HostUnknown("its host key is in no known_hosts")
            self._add(name, key)

    def _of(self, name: str) -> list[KnownHostLine]:
        return [line for line in self._lines if _matches(line.names, name)]

    def _add(self, name: str, key: PKey) -> None:
        self._lines.append(KnownHostLine((name,), key, revoked=False))
        file = self.files[0]
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "rb+") as end:
            size = end.seek(0, os.SEEK_END)
            # A last line without an end would become one with ours, and both be lost.
            is_whole = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
            end.write(f"{'' if is_whole else chr(10)}{name} {key.get_name()} {key.get_base64()}\n".encode())


def parse(text: str) -> list[KnownHostLine]:
    """The lines that make sense. Certificate authorities are not among them: paramiko cannot check certificates."""
    found = []
    for number, given in enumerate(text.splitlines(), 1):
        marker, _, rest = given.strip().partition(" ")
        revoked = marker == "@revoked"
        if marker == "@cert-authority":
            continue
        with suppress(InvalidHostKey, SSHException, ValueError, TypeError, IndexError):
            entry = HostKeyEntry.from_line(rest if revoked else given, number)
            if entry is not None and entry.key is not None:
                found.append(KnownHostLine(tuple(entry.hostnames), entry.key, revoked))
    return found


def _matches(patterns: Sequence[str], name: str) -> bool:
    matched = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            matched = matched or HostKeys.hash_host(name, pattern) == pattern
        elif pattern.startswith("!"):
            if fnmatchcase(name, _glob(pattern[1:])):
                return False
        else:
            matched = matched or pattern == name or fnmatchcase(name, _glob(pattern))
    return matched


def _glob(pattern: str) -> str:
    """OpenSSH knows `*` and `?`; a bracket is only a bracket there, as in `[host]:port`."""
    return pattern.replace("[", "[[]")
