"""Secrets of channels: read where they are needed, and struck out of all that is said."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import SecretStr

from opsctl.alerts.outbox import Undelivered
from opsctl.settings.alerts import VARIABLE
from opsctl.settings.field_types import SettingsTable

SHORTEST_PIECE = 5
LONGEST = 200


def reveal(table: SettingsTable, field: str) -> str:
    """The secret `field` of `table`, from its file, its variable or itself; empty if there is none.

    Raises Undelivered where it is named and cannot be had.
    """
    if file := getattr(table, f"{field}_file"):
        return _from_file(Path(os.path.expandvars(file)).expanduser(), f"{field}_file")
    secret_str: SecretStr = getattr(table, field)
    text = secret_str.get_secret_value()
    if not VARIABLE.fullmatch(text):
        return text
    if not (value := os.environ.get(text[1:], "")):
        raise Undelivered(f"{field}: {text} is not set in the environment", is_permanent=True)
    return value


def _from_file(path: Path, field: str) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not text"
        raise Undelivered(f"{field}: {path}: {why}", is_permanent=True) from error
    if not text:
        raise Undelivered(f"{field}: {path}: is empty", is_permanent=True)
    return text


def find_exposed(table: SettingsTable) -> Iterator[tuple[str, Path]]:
    """The files of secrets that others can read, each with the setting that names it."""
    for field in type(table).model_fields:
        if isinstance(getattr(table, field), SecretStr) and (file := getattr(table, f"{field}_file", "")):
            path = Path(os.path.expandvars(file)).expanduser()
            with contextlib.suppress(OSError):
                if path.stat().st_mode & 0o044:
                    yield f"{field}_file", path


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` without the secrets, and without the pieces of those that are addresses: libraries quote half of one.

    Cut to a length that can be printed, and only then: half a secret would not be found.
    """
    pieces = {piece for secret in secrets if secret for piece in (secret, *_pieces(secret))}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, "***")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _pieces(secret: str) -> list[str]:
    scheme, separator, rest = secret.partition("://")
    if not separator:
        return []
    if scheme in {"http", "https"}:
        # Which server it is may be said, but not who we are there.
        rest = rest.rpartition("@")[0] + "/" + rest.rpartition("@")[2].partition("/")[2]
    return [piece for piece in re.split(r"[/?&=@:#]", rest) if len(piece) >= SHORTEST_PIECE]
