"""The problems of a settings file in the words of the file: the key, what is wrong, and what is known there."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from opsctl.settings.cross_field_checks import find_contradictions, tables_of


def list_problems(model: type[BaseModel], value: Any, error: ValidationError, under: tuple[str, ...] = ()) -> list[str]:
    """Return the problems of single fields, then those between fields."""
    errors = [error_details for error_details in error.errors() if not _is_echo(error_details)]
    places = [error_details["loc"] for error_details in errors]
    contradictions = [
        {"loc": place, "type": "value_error", "msg": text, "input": None}
        for place, text in find_contradictions(model, value, places)
    ]
    return [_describe(model, error_details, under=under) for error_details in (*errors, *contradictions)]


def _is_echo(error: Any) -> bool:
    """Whether a list is too short only because its items have errors of their own."""
    return bool(error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"])


def _describe(model: type[BaseModel], error: Any, under: tuple[str, ...] = ()) -> str:
    # After the key of a dictionary, pydantic adds the word "[key]".
    names = [name for name in _walk(model, error["loc"])[1] if name != "[key]"]
    *tables, key = [*under, *names] or [""]
    place = f"[{'.'.join(tables)}] {key}" if tables else key
    if error["type"] == "extra_forbidden":
        models, _ = _walk(model, error["loc"][:-1])
        known = sorted(set().union(*(table.model_fields for table in models)))
        near = get_close_matches(str(key), known, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"{place}: unknown key; {advice}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{place}: missing"
    # A table is not shown, since a table may contain a secret.
    is_shown = error["type"] != "value_error" and not isinstance(error["input"], dict)
    shown = f", got {error['input']!r:.60}" if is_shown else ""
    return f"{place}: {message}{shown}" if place else f"{message}{shown}"


def _walk(model: type[BaseModel], loc: Sequence[Any]) -> tuple[list[type[BaseModel]], list[str]]:
    """Return the possible tables at `loc`, and the names on the way as in the file.

    For a table of several kinds, pydantic adds the kind to `loc`; the kind is not part of the names.
    """
    models, names = [model], []
    for key in loc:
        fields = [table.model_fields[str(key)] for table in models if str(key) in table.model_fields]
        of_kind = [table for table in models if _is_of_kind(table, key)]
        below: list[type[BaseModel]] = []
        for field in fields:
            below += tables_of(field.annotation)
        models = below or of_kind or models
        if fields or not of_kind:
            names.append(str(key))
    return models, names


def _is_of_kind(table: type[BaseModel], kind: Any) -> bool:
    field = table.model_fields.get("kind")
    return field is not None and get_args(field.annotation) == (kind,)
