"""Secrets of channels: read them where needed, and mask them in every message and error."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import SecretStr

from opsctl.alerts.outbox import Undelivered
from opsctl.settings.alert_channels import VARIABLE
from opsctl.settings.field_types import SettingsTable

MIN_PIECE_CHARS = 5
MAX_TEXT_CHARS = 200


def reveal(table: SettingsTable, field: str) -> str:
    """Return the secret `field` of `table`, read from a file, an environment variable or the field itself.

    Empty if the secret is not configured. Raises Undelivered if the file or variable cannot be read.
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
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise Undelivered(f"{field}: {path}: {why}", is_permanent=True) from error
    if not text:
        raise Undelivered(f"{field}: {path}: empty", is_permanent=True)
    return text


def find_exposed(table: SettingsTable) -> Iterator[tuple[str, Path]]:
    """Return the secret files that other users can read, as pairs of setting and path."""
    for field, path in list_secret_files(table):
        with contextlib.suppress(OSError):
            if path.stat().st_mode & 0o044:
                yield field, path


def list_secret_files(table: SettingsTable) -> Iterator[tuple[str, Path]]:
    """Return the secret files that `table` names, as pairs of setting and path."""
    for field in type(table).model_fields:
        if isinstance(getattr(table, field), SecretStr) and (file := getattr(table, f"{field}_file", "")):
            yield f"{field}_file", Path(os.path.expandvars(file)).expanduser()


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without the secrets, and without the parts of secret addresses, which libraries may quote.

    The text is cut to MAX_TEXT_CHARS after masking: a cut secret would not be recognised.
    """
    pieces: set[str] = set()
    for secret in filter(None, secrets):
        pieces |= {secret, *_pieces(secret)}
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, "***")
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def _pieces(secret: str) -> list[str]:
    scheme, separator, rest = secret.partition("://")
    if not separator:
        return []
    if scheme in {"http", "https"}:
        # The server's name may be shown; user, path and query may not.
        rest = rest.rpartition("@")[0] + "/" + rest.rpartition("@")[2].partition("/")[2]
    return [piece for piece in re.split(r"[/?&=@:#]", rest) if len(piece) >= MIN_PIECE_CHARS]
