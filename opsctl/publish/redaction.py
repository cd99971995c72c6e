"""Remove secrets from text: configured secrets, secrets in the environment, and known formats of secrets."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from opsctl.alerts.channel_secrets import reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.errors import OpsctlError
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.field_types import SettingsTable

STRUCK = b"***"
MIN_SECRET_CHARS = 8
"""A shorter value of a variable or URL is not taken for a secret."""
MIN_URL_PIECE_CHARS = 12
"""Longer pieces of a secret URL reveal the URL; shorter pieces are words such as `services`."""
_SETTING = re.compile(r"\s*(?:export\s+)?\w+=(.{4,})")
"""A line of a shell file: `export NAME=value`."""
_SECRET_NAME_ENDINGS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "APIKEY", "PAT"}
"""Last words of the names of variables that hold secrets."""

_VALUE = rb"[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&<>]{6,})"
_FORMATS: tuple[tuple[bytes, re.Pattern[bytes]], ...] = tuple(
    (anchor, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for anchor, pattern in (
        (b"hf_", rb"()\bhf_[a-z0-9]{20,}"),
        (b"sk-", rb"()\bsk-[a-z0-9_-]{20,}"),
        (b"gh", rb"()\bgh[pousr]_[a-z0-9]{20,}"),
        (b"github_pat_", rb"()\bgithub_pat_[a-z0-9_]{20,}"),
        (b"glpat-", rb"()\bglpat-[a-z0-9_-]{16,}"),
        (b"xox", rb"()\bxox[a-z]-[a-z0-9-]{10,}"),
        (b"akia", rb"()\b(?:AKIA|ASIA)[0-9a-z]{16}\b"),
        (b"https://hooks.", rb"()https://hooks\.[\w.-]+/[^\s\"'<>]+"),
        (b"webhook", rb"()https://[^\s\"'<>]*webhook[^\s\"'<>]*/[^\s\"'<>]+"),
        (b"private key", rb"()-----BEGIN [a-z ]*PRIVATE KEY-----.*?(?:-----END [a-z ]*PRIVATE KEY-----|\Z)"),
        (b"://", rb"(://)[^\s/:@\"'<>]{1,100}:[^\s/@\"'<>]{1,200}(?=@)"),
        (b"authorization", rb"(authorization[\"']?\s*[=:]\s*[\"']?(?:bearer |basic )?)[^\s\"'<>]{8,}"),
        (b"passw", rb"(passw(?:or)?d" + _VALUE),
        (b"secret", rb"(secret(?:_key|_access_key)?" + _VALUE),
        (b"api", rb"(api_?key" + _VALUE),
        (b"token", rb"((?:access|auth|api|hf|bearer|refresh)[_-]?token" + _VALUE),
    )
)
"""Formats of known kinds of secrets. The word before a pattern, in lower case, is searched first, as that is fast. The
first group of a match stays in the text."""


class UnreadableSecret(OpsctlError):
    """A configured secret cannot be read, so no file can be checked for this secret."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets to strike out of published files."""

    known: frozenset[bytes]
    passing: frozenset[bytes] = frozenset()
    """Secrets from the environment of this process. They are struck out, but do not cause a new copy of a published
    file, because cron and a shell have different environments."""

    def strike(self, data: bytes) -> tuple[bytes, int]:
        """Return `data` without secrets, and the number of secrets struck out."""
        count = 0
        for secret in sorted(self.known | self.passing, key=len, reverse=True):
            number = data.count(secret)
            if number:
                data = data.replace(secret, STRUCK)
                count += number
        lower = data.lower()
        for anchor, pattern in _FORMATS:
            if anchor in lower:
                data, number = pattern.subn(rb"\1" + STRUCK, data)
                count += number
        return data, count

    def strike_text(self, text: str) -> str:
        return self.strike(text.encode(errors="replace"))[0].decode(errors="replace")

    @property
    def digest(self) -> str:
        """A hash that changes with the configured secrets. Store the hash only in files without access for others."""
        return hashlib.sha256(b"\0".join(sorted(self.known))).hexdigest()


def gather_secrets(
    alerts: AlertSettings, files: Iterable[str], *, of_train: Mapping[str, str], of_process: Mapping[str, str]
) -> Secrets:
    """Collect the configured secrets, and the secrets in the environments of the train and of this process.

    Raises UnreadableSecret if a configured secret cannot be read. Nothing is published then.
    """
    known = [*_of_alerts(alerts), *_of_files(files), *_of_environment(of_train)]
    return Secrets(_all_forms(known), passing=_all_forms(_of_environment(of_process)))


def _of_alerts(alerts: AlertSettings) -> Iterator[str]:
    tables: list[SettingsTable] = [alerts, *alerts.channels.values()]
    for table in tables:
        for field in type(table).model_fields:
            if isinstance(getattr(table, field), SecretStr):
                try:
                    yield reveal(table, field)
                except Undelivered as error:
                    raise UnreadableSecret(
                        f"nothing is published: a configured secret cannot be read: {error.message}",
                        hint="opsctl must know a secret to strike it out of published files",
                    ) from error


def _of_files(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        try:
            lines = Path(os.path.expandvars(file)).expanduser().read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            raise UnreadableSecret(
                f"nothing is published: a configured secret cannot be read: {file}: {error.strerror}",
                hint="check [publish] secret_files",
            ) from error
        for line in lines:
            yield line
            if setting := _SETTING.fullmatch(line):
                yield setting[1].strip("\"'")


def _of_environment(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if name.upper().rpartition("_")[2] in _SECRET_NAME_ENDINGS and len(value) >= MIN_SECRET_CHARS:
            yield value


def _all_forms(secrets: Iterable[str]) -> frozenset[bytes]:
    return frozenset(filter(None, chain.from_iterable(_forms(secret) for secret in secrets)))


def _forms(secret: str) -> Iterator[bytes]:
    """Yield a secret and its forms in JSON, HTML and URLs; for a URL also the pieces that reveal it."""
    secret = secret.strip()
    for text in (secret, *_pieces(secret)):
        for form in (text, json.dumps(text)[1:-1], html.escape(text), quote(text, safe=""), text.replace("/", "\\/")):
            yield form.encode(errors="surrogateescape")


def _pieces(secret: str) -> list[str]:
    if "://" not in secret:
        return []
    try:
        parts = urlsplit(secret)
        password = parts.password or ""
    except ValueError:
        return []
    pieces = re.split(r"[/?&=#]", f"{parts.path}?{parts.query}")
    revealing = [piece for piece in pieces if len(piece) >= MIN_URL_PIECE_CHARS]
    return [password, *revealing] if len(password) >= MIN_SECRET_CHARS else revealing
