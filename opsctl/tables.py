"""What every table of a settings file is made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(?:i?B)?", re.IGNORECASE)
_UNITS = " KMGTPE"


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def parse_size(text: str) -> int:
    """Bytes (or inodes) from `400T`, `2.5 GiB`, `3000000`; units are powers of 1024. Raises ValueError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.40} is no size: such as 400T, 2.5GiB or a number")
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2].upper() or " "))


def show_size(size: float) -> str:
    """`2.3 TiB`."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}iB"


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "format": "size"}]}),
]
