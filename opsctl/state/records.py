"""The codec of opsctl's JSON records: dataclasses whose fields declare the types and bounds of what a file may hold.

Every file names its format and the version of opsctl that wrote it. A file may come from a newer version: a field that
this version does not know is kept in `extra`, if the class has that field, and is written again with the others.
"""

import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from opsctl import __version__
from opsctl.base.errors import RunDirError
from opsctl.state.files import MAX_RECORD_BYTES, MAX_STATE_BYTES, read_json

T = TypeVar("T")
Convert = Callable[[Any], Any]
FORMAT = 1
HEADER: Mapping[str, object] = {"format": FORMAT, "opsctl": __version__}
MAX_NUMBER = 2**63 - 1
"""Times of files are 64-bit numbers of nanoseconds; start.json holds one."""
CLOCK_TOLERANCE = timedelta(minutes=2)
"""Clocks of nodes differ by this much. A stamp that is further ahead comes from a broken clock."""
YEARS = range(2000, 2200)
"""Times outside cannot be shown in every time zone."""


def to_text(record: Any) -> str:
    """Return the contents of the record's file."""
    return json.dumps({**HEADER, **encode(record)}, indent=1) + "\n"


def encode(record: Any, *, is_sparse: bool = False) -> dict[str, Any]:
    """Return the fields of a record for JSON. A sparse record leaves out the fields that have their default."""
    values: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name != "extra" and not (is_sparse and value == default):
            values[field.name] = _encode_value(value)
    return {**getattr(record, "extra", {}), **values}


def _encode_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_encode_value(item) for item in value]
    return encode(value, is_sparse=True) if is_dataclass(value) else value


def decode(cls: Callable[..., T], record: object) -> T:
    """Return the record of a JSON object.

    Raises ValueError for a missing field and for a value of another type than its field's, or out of bounds.
    """
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    converters = _list_converters(cls)
    values: dict[str, Any] = {}
    for name, convert in converters.items():
        if name in record:
            try:
                values[name] = convert(record[name])
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{name}: {record[name]!r:.80}: {error!s:.80}") from error
    if _has_extra(cls):
        known = converters.keys() | HEADER.keys()
        values["extra"] = {key: value for key, value in record.items() if key not in known}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error


def load_record(cls: Callable[..., T], path: Path, max_bytes: int = MAX_RECORD_BYTES) -> T | None:
    """Return the record in a file; None for a file that cannot be read or holds something else."""
    try:
        return decode(cls, read_json(path, max_bytes))
    except (OSError, ValueError):
        return None


def load_state(parse: Callable[[Any], T], path: Path, hint: str = "repair the file, or move it away") -> T | None:
    """Return what `parse` makes of the JSON in a file; None without the file. Raises RunDirError for a damaged one."""
    try:
        return parse(read_json(path, MAX_STATE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunDirError(f"{path}: cannot be read: {error!s:.200}", hint=hint) from error


@cache
def _has_extra(cls: Any) -> bool:
    return any(field.name == "extra" for field in fields(cls))


@cache
def _list_converters(cls: Any) -> dict[str, Convert]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _converter_for(hints[field.name]) for field in fields(cls) if field.name != "extra"}


def _converter_for(hint: Any) -> Convert:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(_converter_for(arguments[0]), arguments[1])
    if origin in (types.UnionType, Union):
        return _first_of([_converter_for(option) for option in arguments])
    if origin in _CONTAINERS:
        make, place = _CONTAINERS[origin]
        return make(_converter_for(arguments[place]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint):
        return lambda value: decode(hint, value)  # type: ignore[arg-type]  # a class, as is_dataclass cannot say
    return _SIMPLE[hint]


def _bounded(convert: Convert, bound: Any) -> Convert:
    """Return a converter that refuses what a pattern does not match, or a range does not contain."""
    is_within = bound.fullmatch if isinstance(bound, re.Pattern) else bound.__contains__

    def check(value: object) -> object:
        converted = convert(value)
        if not is_within(converted):
            raise ValueError("out of bounds")
        return converted

    return check


def _first_of(options: list[Convert]) -> Convert:
    def convert(value: object) -> object:
        for option in options:
            try:
                return option(value)
            except (ValueError, TypeError):
                continue
        raise ValueError("of another type")

    return convert


def _tuple_of(convert_item: Convert) -> Convert:
    def convert(value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("not a list")
        return tuple(map(convert_item, value))

    return convert


def _dict_of(convert_item: Convert) -> Convert:
    def convert(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return {name: convert_item(item) for name, item in value.items()}

    return convert


_CONTAINERS: dict[Any, tuple[Callable[[Convert], Convert], int]] = {tuple: (_tuple_of, 0), dict: (_dict_of, 1)}
"""For containers, the converter and the place of the item's type among the type's arguments."""


def _checked(*kinds: type) -> Convert:
    """Return a converter that refuses values of other types, and numbers without bound. A truth value is no number."""

    def check(value: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"not of type {kinds[-1].__name__}")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MAX_NUMBER):
            raise ValueError("too large")
        return value

    return check


def to_time(value: object) -> datetime:
    """Return a time with a time zone, from its ISO 8601 text. Raises ValueError."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(time, datetime) or time.utcoffset() is None or time.year not in YEARS:
        raise ValueError("not a time with a time zone")
    return time


def parse_past(text: str, now: datetime) -> datetime:
    """Return the time in `text`, at most `now`. Raises ValueError, TypeError."""
    return min(datetime.fromisoformat(text), now)


def is_from_future(stamp: datetime, now: datetime) -> bool:
    return stamp - now > CLOCK_TOLERANCE


def date_by_first_sight(stamp: datetime, now: datetime, remembered: Sequence[str]) -> tuple[datetime, tuple[str, ...]]:
    """Return when the stamp was set by this machine's clock, and what to pass as `remembered` next time.

    A stamp from the future counts from the moment at which this machine first read the stamp. Counting the stamp as
    now at every reading would keep its writer alive for ever.
    """
    match remembered:
        case [str(text), str(sight)] if text == stamp.isoformat():
            return min(stamp, parse_past(sight, now)), (text, sight)
    return min(stamp, now), (stamp.isoformat(), now.isoformat()) if stamp > now else ()


_SIMPLE: dict[Any, Convert] = {
    **{kind: _checked(kind) for kind in (str, int, bool, type(None))},
    float: _checked(int, float),
    datetime: to_time,
    Path: lambda value: Path(_SIMPLE[str](value)),
}
