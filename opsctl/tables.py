"""What every table of a settings file is made of."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(?:i?B)?", re.IGNORECASE)
_UNITS = " KMGTPE"


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def parse_size(text: str) -> int:
    """Bytes (or inodes) from `400T`, `2.5 GiB`, `3000000`; units are powers of 1024. Raises ValueError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.40} is not a size, such as 400T, 2.5GiB or a number")
    try:
        return int(float(match[1]) * 1024 ** _UNITS.index(match[2].upper() or " "))
    except OverflowError as error:
        raise ValueError(f"{text!r:.40} is more than there is") from error


def show_size(size: float) -> str:
    """`2.3 TiB`."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}iB"


def show_span(span: timedelta) -> str:
    """`40 s`, `12 min`, `2.5 h`."""
    seconds = span.total_seconds()
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def check_name(text: str) -> str:
    """A name becomes a directory, a job name and part of a comment, so it may hold only what is plain in all three."""
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not a name: 1 to 64 letters, digits, dots, dashes and underscores")
    return text


def _check_word(text: str) -> str:
    if not text.isprintable() or any(c.isspace() for c in text):
        raise ValueError(f"{text!r} holds white space or control characters, which would break the #SBATCH line")
    return text


def _check_option(text: str) -> str:
    if not text.startswith("--") or not text.isprintable():
        raise ValueError(f"{text!r} is not an sbatch option: needs to be one line that starts with --")
    return text


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


def _check_zone(text: str) -> str:
    try:
        if text:
            ZoneInfo(text)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{text!r} is not a time zone, such as Europe/Paris") from error
    return text


Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "format": "size"}]}),
]
Name = Annotated[str, AfterValidator(check_name)]
Word = Annotated[str, AfterValidator(_check_word)]
SbatchOption = Annotated[str, AfterValidator(_check_option)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
TimeZone = Annotated[str, AfterValidator(_check_zone)]
