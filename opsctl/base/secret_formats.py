"""Strike secrets out of text: known values, secrets of the environment, and formats of well-known kinds of secrets.

Used for published files (publish/redaction.py) and for every log record (host/log_config.py).
"""

from __future__ import annotations

import functools
import hashlib
import html
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

STRUCK = b"***"
MIN_SECRET_CHARS = 8
"""A shorter value of a variable or URL is not taken for a secret."""
MIN_URL_PIECE_CHARS = 12
"""Longer pieces of a secret URL reveal the URL; shorter pieces are words such as `services`."""
_SECRET_NAME_ENDINGS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "APIKEY", "PAT"}
"""Last words of the names of variables that hold secrets."""

_VALUE = rb"[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&<>]{6,})"
_FORMATS: tuple[tuple[bytes, bytes], ...] = (
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
"""Formats of known kinds of secrets. The word before a pattern, in lower case, is searched first, as that is fast. The
first group of a match stays in the text."""


@functools.cache
def _compile(pattern: bytes) -> re.Pattern[bytes]:
    # On first use: most commands meet no text that could be a secret.
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets to strike out of text."""

    known: frozenset[bytes] = frozenset()
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
                data, number = _compile(pattern).subn(rb"\1" + STRUCK, data)
                count += number
        return data, count

    def strike_text(self, text: str) -> str:
        return self.strike(text.encode(errors="replace"))[0].decode(errors="replace")

    @property
    def digest(self) -> str:
        """A hash that changes with the configured secrets. Store the hash only in files without access for others."""
        return hashlib.sha256(b"\0".join(sorted(self.known))).hexdigest()


def find_in_environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables whose names end like those of secrets, such as HF_TOKEN."""
    for name, value in env.items():
        if name.upper().rpartition("_")[2] in _SECRET_NAME_ENDINGS and len(value) >= MIN_SECRET_CHARS:
            yield value


def all_forms(secrets: Iterable[str]) -> frozenset[bytes]:
    """Return the secrets and their forms in JSON, HTML and URLs; of a URL also the pieces that reveal the URL."""
    return frozenset(itertools.chain.from_iterable(map(_forms, secrets))) - {b""}


def _forms(secret: str) -> Iterator[bytes]:
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
