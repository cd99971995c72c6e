"""Write and change settings files, so that train.toml records what a program or a rollback configured."""

import tomllib
from collections.abc import Mapping
from typing import Any


def dump_toml(settings: Mapping[str, Any]) -> str:
    """Return TOML text that tomllib reads as `settings`. Keys that are None are left out.

    Raises ValueError for a value that TOML cannot hold.
    """
    import tomlkit  # noqa: PLC0415  # takes 20 ms to load, and few commands write settings

    try:
        text = tomlkit.dumps(_without_none(settings))
        text.encode()  # a lone surrogate is a text of Python and none of TOML
    except TypeError as error:
        raise ValueError(str(error)) from error
    return text


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def set_keys(text: str, table: str, values: Mapping[str, Any]) -> str:
    """Return TOML `text` with the keys of a top-level table set, removed if None; all else stays as written.

    The empty table is the top level itself.

    Raises ValueError for a text that is not TOML, or whose table is scattered so that tomlkit changes it wrongly.
    """
    import tomlkit  # noqa: PLC0415  # as above

    document = tomlkit.parse(text)
    if table and table not in document:
        document[table] = tomlkit.table()
    fields: Any = document[table] if table else document
    for key, value in values.items():
        if value is None:
            fields.pop(key, None)
        else:
            fields[key] = value
    changed = tomlkit.dumps(document)
    expected = tomllib.loads(text)
    # A rollback depends on this text, so it is read back: list and tuple are the same in TOML.
    changes = tomllib.loads(dump_toml({**(expected.get(table, {}) if table else expected), **values}))
    expected = {**expected, table: changes} if table else changes
    if tomllib.loads(changed) != expected:
        raise ValueError(f"[{table}] must be one table of its own")
    return changed
