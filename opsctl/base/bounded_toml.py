"""Parse TOML that other users may have written. The time of tomllib grows with the square of the parts of a key."""

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 100
"""Parts of one key or of one table's name. The deepest setting of opsctl has four."""
_TEXTS = re.compile(
    r'"""(?:[^\\]|\\.?)*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.?)*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*",
    re.DOTALL,
)
"""Strings and comments, also those without an end: a match always begins at a quote, so that the search is linear."""
_BETWEEN_KEYS = re.compile(r"[^\w\-. \t]+")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table. Raises ValueError, also for a key of too many parts and for values nested too deeply."""
    names = _TEXTS.sub("_", text)
    if max(part.count(".") for part in _BETWEEN_KEYS.split(names)) >= MAX_KEY_PARTS:
        raise ValueError(f"not valid TOML: a key of more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("not valid TOML: nested too deeply") from error
