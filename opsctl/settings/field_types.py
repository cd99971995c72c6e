"""Field types and the base class of settings tables."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import time
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from opsctl.base.tables import read_package_table
from opsctl.base.units import UNITS_S, convert_duration, parse_duration, parse_size
from opsctl.settings.bounded_pattern import compile_bounded

_HOURS = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)", re.ASCII)
OLD_SEVERITY = "level"
"""Name of `severity` in settings and templates that were written before 0.1.0."""
OLD_NAMES = {OLD_SEVERITY: "severity", "lemon_score": "flaky_score", "lemon_days": "flaky_days"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class SettingsTable(BaseModel):
    """Base of every table: unknown keys are refused, values are not converted. descriptions.toml says what keys are."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def read_durations(cls, table: Any) -> Any:
        """Convert texts such as "90m" to the unit of their key; a number is in that unit already."""
        if not isinstance(table, dict):
            return table
        names = {old: name for old, name in OLD_NAMES.items() if name in cls.model_fields and name not in table}
        return {names.get(key, key): _to_unit(key, value) for key, value in table.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema with the descriptions of the keys."""
        schema = handler(core_schema)
        for key, text in read_package_table("settings/descriptions.toml").get(cls.__name__, {}).items():
            handler.resolve_ref_schema(schema)["properties"][key]["description"] = text
        return schema


def must(is_valid: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator that refuses a value for which `is_valid` is false or raises. `message` has a place for the
    value."""

    def check(value: Any) -> Any:
        with suppress(KeyError, ValueError, OSError):
            if is_valid(value):
                return value
        raise ValueError(message.format(value))

    return AfterValidator(check)


def _to_unit(key: object, value: object) -> object:
    unit_s = UNITS_S.get(str(key).rpartition("_")[2])
    if unit_s is None or not isinstance(value, str):
        return value
    try:
        amount = convert_duration(value, unit_s)
    except ValueError:
        return value  # the field refuses it
    return int(amount) if amount.is_integer() else amount


def _parse_size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def _parse_duration(value: object) -> object:
    return parse_duration(value).total_seconds() if isinstance(value, str) else value


def check_name(text: str) -> str:
    """Return the name if it is valid as a directory, a job name and part of a comment. Raises ValueError."""
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not a name: 1 to 64 letters, digits, dots, dashes and underscores")
    return text


def _check_pattern(text: str) -> str:
    compile_bounded(text)
    return text


def parse_hours(text: str) -> tuple[time, time]:
    """Parse `22:00-07:00` into two different times. Raises ValueError."""
    match = _HOURS.fullmatch(text)
    with suppress(ValueError):
        if match and match[1] != match[2]:
            return time.fromisoformat(match[1]), time.fromisoformat(match[2])
    raise ValueError(f"{text!r:.40} is not a span of hours, such as 22:00-07:00")


Size = Annotated[
    int,
    BeforeValidator(_parse_size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "format": "size"}]}),
]
Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "format": "duration"}]}),
]
"""Seconds, from a text such as `90s`, `10m` or `1h30m`, or from a number of seconds."""
Name = Annotated[str, AfterValidator(check_name)]
Word = Annotated[
    str,
    must(
        lambda text: text.isprintable() and not re.search(r"\s", text),
        "{!r} contains white space or control characters, which would break the #SBATCH line",
    ),
]
SbatchOption = Annotated[
    str,
    must(
        lambda text: text.startswith("--") and text.isprintable(),
        "{!r} is not an #SBATCH option: one line that starts with --",
    ),
]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Hours = Annotated[
    str, must(lambda text: not text or parse_hours(text), "{!r:.40} is not a span of hours, such as 22:00-07:00")
]
TimeZone = Annotated[
    str, must(lambda text: not text or ZoneInfo(text[:99]), "{!r:.99} is not a time zone, such as Europe/Paris")
]
Text = Annotated[str, must(lambda text: "\0" not in text, "contains a NUL byte, which cannot be passed to a program")]
Directory = Annotated[
    Text,
    must(
        lambda path: not path or path.startswith("/"),
        "{!r} is relative: an absolute path is needed, since tasks start on other machines",
    ),
]
