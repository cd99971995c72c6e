"""What nobody else may see: configured secrets, secrets in the environment, and what looks like one."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from opsctl.alerts.channel_secrets import reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.errors import OpsctlError
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.field_types import SettingsTable

STRUCK = b"***"
SHORTEST = 8
"""Of what is taken for a secret without anybody having said so."""
LONG_PIECE = 12
"""Of an address that is a secret, what gives it away: shorter pieces are words such as `services`."""
_SETTING = re.compile(r"\s*(?:export\s+)?\w+=(.{4,})")
"""A line of a file that is sourced."""
_ENDINGS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "APIKEY", "PAT"}
"""Last words of the names of variables that hold secrets."""

_VALUE = rb"[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&<>]{6,})"
_KNOWN: tuple[tuple[bytes, re.Pattern[bytes]], ...] = tuple(
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
)  # fmt: skip
"""What secrets of known makes look like, each behind a word that is quickly looked for, in small letters. The first
group stays."""


class UnreadableSecret(OpsctlError):
    """A secret that is configured and cannot be had, so that nobody can say whether a file holds it."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets, and how to strike them out."""

    known: frozenset[bytes]
    passing: frozenset[bytes] = frozenset()
    """Those of the environment, which is another one under cron than in a shell: struck out as well, but what is
    already published is not made anew for their sake."""

    def strike(self, data: bytes) -> tuple[bytes, int]:
        """`data` without them, and how many there were."""
        count = 0
        for each in sorted(self.known | self.passing, key=len, reverse=True):
            number = data.count(each)
            data, count = (data.replace(each, STRUCK), count + number) if number else (data, count)
        small = data.lower()
        for anchor, pattern in _KNOWN:
            if anchor in small:
                data, number = pattern.subn(rb"\1" + STRUCK, data)
                count += number
        return data, count

    def strike_text(self, text: str) -> str:
        return self.strike(text.encode(errors="replace"))[0].decode(errors="replace")

    @property
    def digest(self) -> str:
        """Changes when the configured ones do. To be kept where nobody else reads it."""
        return hashlib.sha256(b"\0".join(sorted(self.known))).hexdigest()


def gather(
    alerts: AlertSettings, files: Iterable[str], *, of_train: Mapping[str, str], of_process: Mapping[str, str]
) -> Secrets:
    """All that are configured, and those in the environment of the train and of this process.

    Raises Unknown if a configured one cannot be had: better nothing is published.
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
                        f"nothing is published while a secret is not known: {error.message}",
                        hint="what cannot be read cannot be struck out of what is published",
                    ) from error


def _of_files(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        try:
            lines = Path(os.path.expandvars(file)).expanduser().read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            raise UnreadableSecret(
                f"nothing is published while a secret is not known: {file}: {error.strerror}",
                hint="secret_files of [publish]",
            ) from error
        for line in lines:
            yield line
            if setting := _SETTING.fullmatch(line):
                yield setting[1].strip("\"'")


def _of_environment(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if name.upper().rpartition("_")[2] in _ENDINGS and len(value) >= SHORTEST:
            yield value


def _all_forms(secrets: Iterable[str]) -> frozenset[bytes]:
    return frozenset(form for secret in secrets for form in _forms(secret) if form)


def _forms(secret: str) -> Iterator[bytes]:
    """As it is, and as JSON, HTML and addresses write it; of an address also what gives it away."""
    secret = secret.strip()
    for each in (secret, *_pieces(secret)):
        for form in (each, json.dumps(each)[1:-1], html.escape(each), quote(each, safe=""), each.replace("/", "\\/")):
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
    return [
        *([password] if len(password) >= SHORTEST else []),
        *(piece for piece in pieces if len(piece) >= LONG_PIECE),
    ]
