"""Cases that stand as data in the TOML file beside a test."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Argument = Callable[[Any], object]


def read_table(test_file: str, table: str) -> Any:
    """Read a table of `test_x.toml` beside `test_x.py`."""
    return tomllib.loads(Path(test_file).with_suffix(".toml").read_text())[table]


def read_cases(test_file: str, table: str, **makers: Argument) -> tuple[list[str], list[object]]:
    """Read both arguments of pytest.mark.parametrize from the TOML file beside a test.

    A field that a case leaves out is None; `id` names a case. Makers turn a field into what the test takes.
    """
    rows = read_table(test_file, table)
    names = list(dict.fromkeys(name for row in rows for name in row if name != "id"))

    def make(row: dict[str, Any], name: str) -> object:
        return makers[name](row[name]) if name in makers and name in row else row.get(name)

    return names, [pytest.param(*(make(row, name) for name in names), id=row.get("id")) for row in rows]
