"""Strike secrets out of text: known values, secrets of the environment, and formats of well-known kinds of secrets.

The formats of services are those of gitleaks, in secret_rules.tsv; ours of command lines are in secret_formats.tsv.
Used for published files (publish/redaction.py) and for every log record (host/log_config.py).
"""

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
_SECRET_NAME = re.compile(
    r"(?:TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|APIKEY|JWT|CREDS|CREDENTIALS?|SSHPASS)$"
    r"|(?:^|_)(?:KEYS?|PAT|CRED|DSN|AUTH|COOKIE|WEBHOOK)$|_(?:PWD|PASS)$"
)
_HERE = Path(__file__).parent


def _strike_group(data: bytes, pattern: bytes, group: int, least_bits: float) -> tuple[bytes, int]:
    """Strike a group of a pattern where its text has at least so many bits per character."""
    pieces: list[bytes] = []
    end = 0
    for match in _compile(pattern, 0).finditer(data):
        place = match.span(group)
        if place[0] >= 0 and _measure_entropy(data[slice(*place)]) >= least_bits:
            pieces += [data[end : place[0]], STRUCK]
            end = place[1]
    return (b"".join([*pieces, data[end:]]), len(pieces) // 2) if pieces else (data, 0)


def _measure_entropy(text: bytes) -> float:
    """Return bits per character: words of a language have less than random text."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


@functools.cache
def _read_table(name: str) -> tuple[list[bytes], ...]:
    """Return the rows of a table beside this module. Read at the first text to strike: most commands have none."""
    lines = (_HERE / name).read_bytes().splitlines()
    return tuple(line.split(b"\t") for line in lines if not line.startswith(b"#"))


@functools.cache
def _compile(pattern: bytes, flags: int = re.IGNORECASE | re.DOTALL) -> re.Pattern[bytes]:
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
        for word, pattern in _read_table("secret_formats.tsv"):
            if word in lower:
                data, number = _compile(pattern).subn(rb"\1" + STRUCK, data)
                count += number
        for _, words, group, bits, pattern in _read_table("secret_rules.tsv"):
            if any(word in lower for word in words.split(b",")):
                data, number = _strike_group(data, pattern, int(group), float(bits))
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
    return bool(_SECRET_NAME.search(name.upper().replace("-", "_")))


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
