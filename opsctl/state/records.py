"""Check that a record read from a file has the types that its dataclass declares."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from opsctl.state.events import YEARS

T = TypeVar("T")
MAX_NUMBER = 2**63 - 1
"""Times of files are 64-bit numbers of nanoseconds; start.json holds one."""


def checked(record: T) -> T:
    """Return the record. Raises ValueError for a value of another type than its field's, or out of bounds.

    Knows text, numbers, truth values, enumerations, times with a time zone, and tuples and options of these.
    """
    cls: Any = type(record)
    for name, check in _checks(cls):
        if not check(getattr(record, name)):
            raise ValueError(f"{name}: {getattr(record, name)!r:.80}")
    return record


@cache
def _checks(cls: Any) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, _check_for(hints[field.name])) for field in fields(cls))


def _check_for(hint: Any) -> Callable[[object], bool]:
    if get_origin(hint) is types.UnionType:
        checks = [_check_for(option) for option in get_args(hint)]
        return lambda value: any(check(value) for check in checks)
    if get_origin(hint) is tuple:
        check_item = _check_for(get_args(hint)[0])
        return lambda value: isinstance(value, tuple) and all(map(check_item, value))
    return _SIMPLE.get(hint) or (lambda value: isinstance(value, hint))


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= MAX_NUMBER  # type: ignore[arg-type]  # mypy does not narrow by `type() in`


def _is_time(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None and value.year in YEARS


_SIMPLE: dict[Any, Callable[[object], bool]] = {
    int: lambda value: type(value) is int and abs(value) <= MAX_NUMBER,
    float: _is_number,
    datetime: _is_time,
    Enum: lambda value: isinstance(value, Enum),
}
