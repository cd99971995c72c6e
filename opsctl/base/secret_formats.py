"""Strike secrets out of text: known values, secrets of the environment, and formats of well-known kinds of secrets.

The formats of services are those of gitleaks, in secret_rules.tsv; those of command lines and of variables stand here.
Used for published files (publish/redaction.py) and for every log record (host/log_config.py).
"""

from __future__ import annotations

import functools
import hashlib
import html
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

STRUCK = b"***"
MIN_SECRET_CHARS = 8
"""A shorter value of a variable or URL is not taken for a secret."""
MIN_URL_PIECE_CHARS = 12
"""Longer pieces of a secret URL reveal the URL; shorter pieces are words such as `services`."""
_SECRET_WORDS = frozenset(
    {"KEY", "KEYS", "PAT", "PWD", "PASS", "CRED", "DSN", "AUTH", "COOKIE", "WEBHOOK", "SSHPASS", "NETRC"}
)
"""Last words of the names of variables that hold secrets."""
_SECRET_ENDINGS = (
    *("TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "APIKEY"),
    *("JWT", "CREDS", "CREDENTIAL", "CREDENTIALS"),
)
"""As above, also at the end of a word, as in PGPASSWORD."""

_VALUE = rb"[\"']?\s{0,9}[=:]\s{0,9}[\"']?)([^\s\"',;&<>]{6,})"
_OPTION_VALUE = rb"(?:=|\s{1,9})[\"']?)(?![-$<({])[^\s\"'<>]"
_FORMATS: tuple[tuple[bytes, bytes], ...] = (
    (b"hf_", rb"()\bhf_[a-z0-9]{20,}"),
    (b"sk-", rb"()\bsk-[a-z0-9_-]{20,}"),
    (b"gh", rb"()\bgh[pousr]_[a-z0-9]{20,}"),
    (b"github_pat_", rb"()\bgithub_pat_[a-z0-9_]{20,}"),
    (b"glpat-", rb"()\bglpat-[a-z0-9_-]{16,}"),
    (b"xox", rb"()\bxox[a-z]-[a-z0-9-]{10,}"),
    (b"akia", rb"()\b(?:AKIA|ASIA)[0-9a-z]{16}\b"),
    (b"aiza", rb"()\bAIza[\w-]{30,}"),
    (b"npm_", rb"()\bnpm_[a-z0-9]{30,}"),
    (b"eyj", rb"()\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    (b"https://hooks.", rb"()https://hooks\.[\w.-]+/[^\s\"'<>]+"),
    (b"webhook", rb"()https://[^\s\"'<>]{0,500}webhook[^\s\"'<>]{0,500}/[^\s\"'<>]+"),
    (b"private key", rb"()-----BEGIN [a-z ]{0,40}PRIVATE KEY-----.*?(?:-----END [a-z ]{0,40}PRIVATE KEY-----|\Z)"),
    (b"://", rb"(://)[^\s/:@\"'<>]{1,100}:[^\s/@\"'<>]{1,200}(?=@)"),
    (
        b"=",
        rb"([?&](?:[\w-]{0,40}[_-])?(?:token|key|apikey|secret|password|signature|sig|credential|auth|jwt)=)[^\s&\"'<>]{6,}",
    ),
    (
        b"curl",
        rb"(\bcurl\b[^\n]{0,300}?\s(?:-\w{0,9}u|--user|--proxy-user)[= ]{0,3}[\"']?)[^\s\"':$]{1,100}:[^\s\"']{1,200}",
    ),
    (b"wandb", rb"(\bwandb[\"', ]{1,4}login[\"', ]{1,4}(?:--\S{1,60}[\"', ]{1,4}){0,4})[\w-]{32,}"),
    (b"authorization", rb"(authorization[\"']?\s{0,9}[=:]\s{0,9}[\"']?(?:bearer |basic )?)[^\s\"'<>]{8,}"),
    (b"passw", rb"(passw(?:or)?d" + _VALUE),
    (b"passw", rb"(--[\w-]{0,30}passw(?:or)?d" + _OPTION_VALUE + rb"{1,200}"),
    (b"passphrase", rb"(passphrase" + _VALUE),
    (b"secret", rb"(secret(?:_key|_access_key)?" + _VALUE),
    (b"secret", rb"(--[\w-]{0,30}secret(?:-key)?" + _OPTION_VALUE + rb"{8,200}"),
    (b"api", rb"(api[_-]?key" + _VALUE),
    (b"api", rb"(--[\w-]{0,30}api[_-]?key" + _OPTION_VALUE + rb"{8,200}"),
    (b"token", rb"((?:access|auth|api|hf|bearer|refresh)[_-]?token" + _VALUE),
    (b"token", rb"(--(?:[\w-]{0,30}(?:access|auth|api|hf|hub|bearer)[_-])?token" + _OPTION_VALUE + rb"{8,200}"),
    (b"jwt", rb"(jwt" + _VALUE),
    (b"cred", rb"(\b(?:\w{0,60}_)?cred(?:s|entials?)?" + _VALUE),
    (b"_pwd", rb"(\w_pwd" + _VALUE),
    (b"_pass=", rb"(\w_pass=[\"']?)[^\s\"',;&<>]{6,}"),
)
"""Formats of secrets. The word before a pattern, in lower case, is searched first, as that is fast. The first group of
a match stays in the text. Quantifiers that another one follows are bounded, as the text is another user's."""
_RULES_FILE = Path(__file__).with_name("secret_rules.tsv")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A format of gitleaks."""

    words: tuple[bytes, ...]
    group: int
    least_bits: float
    pattern: bytes

    def strike(self, data: bytes) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        end = 0
        for match in _compile(self.pattern, 0).finditer(data):
            place = match.span(self.group)
            if place[0] >= 0 and _measure_entropy(data[slice(*place)]) >= self.least_bits:
                pieces += [data[end : place[0]], STRUCK]
                end = place[1]
        return (b"".join([*pieces, data[end:]]), len(pieces) // 2) if pieces else (data, 0)


def _measure_entropy(text: bytes) -> float:
    """Return bits per character: words of a language have less than random text."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


@functools.cache
def _read_rules() -> tuple[_Rule, ...]:
    rows = (line.split(b"\t") for line in _RULES_FILE.read_bytes().splitlines() if not line.startswith(b"#"))
    return tuple(
        _Rule(words=tuple(words.split(b",")), group=int(group), least_bits=float(bits), pattern=pattern)
        for _, words, group, bits, pattern in rows
    )


@functools.cache
def _compile(pattern: bytes, flags: int = re.IGNORECASE | re.DOTALL) -> re.Pattern[bytes]:
    # On first use: most commands meet no text that could be a secret.
    return re.compile(pattern, flags)


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
        for rule in _read_rules():
            if any(word in lower for word in rule.words):
                data, number = rule.strike(data)
                count += number
        return data, count

    def strike_text(self, text: str) -> str:
        return self.strike(text.encode(errors="replace"))[0].decode(errors="replace")

    @property
    def digest(self) -> str:
        """A hash that changes with the configured secrets. Store the hash only in files without access for others."""
        return hashlib.sha256(b"\0".join(sorted(self.known))).hexdigest()


def is_secret_name(name: str) -> bool:
    """Whether a variable with this name holds a secret, such as HF_TOKEN, PGPASSWORD or MY_PWD; not so PWD itself."""
    upper = name.upper().replace("-", "_")
    before, _, last = upper.rpartition("_")
    return upper.endswith(_SECRET_ENDINGS) or (last in _SECRET_WORDS and (bool(before) or last not in {"PWD", "PASS"}))


def find_in_environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables whose names are those of secrets, such as HF_TOKEN."""
    for name, value in env.items():
        if is_secret_name(name) and len(value) >= MIN_SECRET_CHARS:
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
