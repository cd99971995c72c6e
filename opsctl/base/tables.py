"""Tables that come with opsctl: TOML files beside the code that reads them."""

import tomllib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


def read_package_table(name: str) -> dict[str, Any]:
    """Return a table by its path in the package, such as `metrics/families.toml`."""
    return tomllib.loads((PACKAGE / name).read_text(encoding="utf-8"))
