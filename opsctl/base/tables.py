"""Read TOML: the tables that come with opsctl, beside the code that reads them, and what others may have written."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
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


@cache
def read_package_table(name: str) -> dict[str, Any]:
    """Return a table by its path in the package, such as `metrics/families.toml`: the same object at every call."""
    return tomllib.loads((PACKAGE / name).read_text(encoding="utf-8"))


def read_patterns(name: str, section: str) -> dict[str, re.Pattern[str]]:
    """Return the expressions of a section of a table."""
    return {key: re.compile(text) for key, text in read_package_table(name)[section].items()}


def read_byte_patterns(name: str, section: str) -> dict[str, re.Pattern[bytes]]:
    """Return the expressions of a section of a table, for bytes."""
    return {key: re.compile(text.encode()) for key, text in read_package_table(name)[section].items()}


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a text that another user may have written.

    Raises ValueError, also for a key of too many parts, with whose square the time of tomllib grows, and for values
    nested too deeply.
    """
    names = _TEXTS.sub("_", text)
    if max(part.count(".") for part in _BETWEEN_KEYS.split(names)) >= MAX_KEY_PARTS:
        raise ValueError(f"not valid TOML: a key of more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("not valid TOML: nested too deeply") from error
