"""The reference of a settings file as Markdown, from its JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def markdown(schema: Schema) -> str:
    """Return a heading and a Markdown table for each table of the file, the top level first."""
    return "\n\n".join(_tables(schema, schema, "")).strip() + "\n"


def _tables(whole: Schema, table: Schema, name: str, brackets: str = "[]") -> Iterator[str]:
    """Yield the Markdown of a table and of the tables inside, in the order of their declaration."""
    inner: list[tuple[Schema, str, str]] = []
    rows: list[str] = []
    for key, field in table.get("properties", {}).items():
        path = f"{name}.{key}" if name else key
        tables = list(_inside(whole, field, path))
        inner += tables
        if not tables:
            default = "**required**" if key in table.get("required", ()) else _default(field)
            rows.append(f"| `{key}` | {_kind(field)} | {default} | {_cell(field.get('description', ''))} |")
    text = " ".join(str(table.get("description", "")).split())
    heading = [f"### `{brackets[0] * (len(brackets) // 2)}{name}{brackets[-1] * (len(brackets) // 2)}`"] if name else []
    head = ["| key | | default | what it is |\n|---|---|---|---|"] if rows else []
    yield "\n\n".join([*heading, *([text] if text else []), *("\n".join([*head, *rows]) for _ in head)])
    for schema, path, around in inner:
        yield from _tables(whole, schema, path, around)


def _inside(whole: Schema, field: Schema, path: str) -> Iterator[tuple[Schema, str, str]]:
    """Yield the tables of a key: a single table, a list of tables, or tables with names chosen by the user."""
    if "$ref" in field:
        table = whole["$defs"][field["$ref"].rpartition("/")[2]]
        if table.get("type") == "object":
            yield table, path, "[]"
    for variant in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _inside(whole, variant, path)
    if field.get("type") == "array":
        yield from ((table, name, "[[]]") for table, name, _ in _inside(whole, field["items"], path))
    if isinstance(more := field.get("additionalProperties"), dict):
        yield from _inside(whole, more, f"{path}.NAME")


def _kind(field: Schema) -> str:
    """Return the type of a key: `whole number ≥ 1`, `"a" or "b"`, `list of text`."""
    if options := [variant for variant in field.get("anyOf", ()) if variant.get("type") != "null"]:
        return " or ".join(dict.fromkeys(map(_kind, options)))
    if words := field.get("enum") or ([field["const"]] if "const" in field else []):
        return " or ".join(f"`{json.dumps(word)}`" for word in words)
    if field.get("format") == "size":
        return 'size such as `"64M"`'
    kind = str(field.get("type", ""))
    if kind == "array":
        return f"list of {_kind(field.get('items', {}))}"
    if kind == "object":
        return f"table of {_kind(field.get('additionalProperties', {}))}"
    bounds = [f"{sign} {field[word]:g}" for word, sign in BOUNDS.items() if word in field]
    return " ".join([KINDS.get(kind, kind), *([", ".join(bounds)] if bounds else [])])


def _default(field: Schema) -> str:
    default = field.get("default")
    return "unset" if default is None else f"`{_cell(json.dumps(default, ensure_ascii=False))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
