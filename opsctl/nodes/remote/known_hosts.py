"""Check host keys against OpenSSH's known_hosts files, with patterns, hashed names and revoked keys."""

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
    """The host's key differs from the known key, or is revoked."""


class HostUnknown(Exception):
    """No known_hosts file has a key of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHostLine:
    patterns: tuple[str, ...]
    key: PKey
    is_revoked: bool


@dataclass(slots=True)
class KnownHosts:
    """The lines of all files. New lines are written to the first file. Safe to use from many threads."""

    files: Sequence[Path]
    accept_new: bool = False
    """Whether to trust, and add, the key of a host that no file names."""
    _lines: list[KnownHostLine] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for file in self.files:
            with suppress(OSError):
                self._lines += parse(file.read_text(errors="replace"))

    def list_key_types(self, host: str) -> list[str]:
        """Return the types of a host's known keys, so that the host can be asked for a key of these types."""
        with self._lock:
            return list(dict.fromkeys(line.key.get_name() for line in self._find(host) if not line.is_revoked))

    def check(self, host: str, key: PKey) -> None:
        """Check a host's key; add the key of a new host if `accept_new`. Raises HostKeyChanged, HostUnknown."""
        with self._lock:
            lines = self._find(host)
            same = [line for line in lines if line.key == key]
            if any(line.is_revoked for line in same):
                raise HostKeyChanged("the host key is revoked in known_hosts")
            if same:
                return
            if lines:
                raise HostKeyChanged(f"the host key differs from known_hosts: {key.fingerprint}")
            if not self.accept_new:
                raise HostUnknown("the host key is in no known_hosts file")
            self._add(host, key)

    def _find(self, host: str) -> list[KnownHostLine]:
        return [line for line in self._lines if _matches(line.patterns, host)]

    def _add(self, host: str, key: PKey) -> None:
        self._lines.append(KnownHostLine(patterns=(host,), key=key, is_revoked=False))
        path = self.files[0]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            # Appending to a last line without a newline would destroy both lines.
            is_terminated = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            newline = "" if is_terminated else "\n"
            file.write(f"{newline}{host} {key.get_name()} {key.get_base64()}\n".encode())


def parse(text: str) -> list[KnownHostLine]:
    """Return the valid lines. Certificate authorities are left out: paramiko cannot check certificates."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        marker, _, rest = line.strip().partition(" ")
        is_revoked = marker == "@revoked"
        if marker == "@cert-authority":
            continue
        with suppress(InvalidHostKey, SSHException, ValueError, TypeError, IndexError):
            entry = HostKeyEntry.from_line(rest if is_revoked else line, number)
            if entry is not None and entry.key is not None:
                patterns = tuple(entry.hostnames)
                lines.append(KnownHostLine(patterns=patterns, key=entry.key, is_revoked=is_revoked))
    return lines


def _matches(patterns: Sequence[str], host: str) -> bool:
    """Return whether any pattern matches the host and no negated pattern does."""
    is_match = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            is_match = is_match or HostKeys.hash_host(host, pattern) == pattern
        elif pattern.startswith("!"):
            if fnmatchcase(host, _escape_brackets(pattern[1:])):
                return False
        else:
            is_match = is_match or pattern == host or fnmatchcase(host, _escape_brackets(pattern))
    return is_match


def _escape_brackets(pattern: str) -> str:
    """Return a glob for fnmatch. In OpenSSH only `*` and `?` are special; `[host]:port` is literal."""
    return pattern.replace("[", "[[]")
