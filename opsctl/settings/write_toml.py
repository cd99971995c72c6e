"""Write a settings file from nested dictionaries, so that train.toml records what a program configured."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(settings: Mapping[str, Any]) -> str:
    """Return TOML text that tomllib reads as `settings`. Tables that are None are left out.

    Raises ValueError for a value that TOML cannot hold.
    """
    return "\n".join(_lines(settings, ())) + "\n"


def set_keys(text: str, table: str, values: Mapping[str, Any]) -> str:
    """Return TOML `text` with the keys of a top-level table set, removed if None; all else stays as written.

    Raises ValueError if the table is written in a form that cannot be changed line by line.
    """
    expected = tomllib.loads(text)
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    fields = {**expected.get(table, {}), **values}
    expected[table] = {key: value for key, value in fields.items() if value is not None}
    lines = text.splitlines()
    header = re.compile(rf"\s*\[\s*{table}\s*\]\s*(?:#.*)?")
    begin = next((number for number, line in enumerate(lines) if header.fullmatch(line)), None)
    if begin is None:
        lines += ["", f"[{table}]"]
        begin = len(lines) - 1
    end = next(
        (number for number in range(begin + 1, len(lines)) if lines[number].lstrip().startswith("[")), len(lines)
    )
    body = [line for line in lines[begin + 1 : end] if line.partition("=")[0].strip() not in values]
    body = [f"{key} = {_value(value)}" for key, value in values.items() if value is not None] + body
    changed = "\n".join([*lines[: begin + 1], *body, *lines[end:]]) + "\n"
    try:
        is_right = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ValueError(f"[{table}] must be a table of its own, with one line for each key")
    return changed


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    fields = {key: value for key, value in table.items() if value is not None}
    for key, value in fields.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, key))


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{key!r:.80}: not a text, as the name of a setting must be")
    return key if BARE_KEY.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # also inf and nan, as TOML spells them
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # a table in a list
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    raise ValueError(f"{value!r:.80}: no text, number, boolean, list or table")


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r:.80}: not valid Unicode") from None
    # A JSON string is a TOML string, except for this one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
