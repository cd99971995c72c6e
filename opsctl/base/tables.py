"""Tables that come with opsctl: TOML files beside the code that reads them."""

import re
import tomllib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


def read_package_table(name: str) -> dict[str, Any]:
    """Return a table by its path in the package, such as `metrics/families.toml`."""
    return tomllib.loads((PACKAGE / name).read_text(encoding="utf-8"))


def read_patterns(name: str, section: str) -> dict[str, re.Pattern[str]]:
    """Return the expressions of a section of a table."""
    return {key: re.compile(text) for key, text in read_package_table(name)[section].items()}


def read_byte_patterns(name: str, section: str) -> dict[str, re.Pattern[bytes]]:
    """Return the expressions of a section of a table, for bytes."""
    return {key: re.compile(text.encode()) for key, text in read_package_table(name)[section].items()}
