"""What is wrong with the fields of a table together, told beside what is wrong with single ones.

pydantic asks a table's own validators only where each of its fields is fine, and those of the tables around it: the
rest would be told at the second attempt. Here they are asked with what is fine; one that needs more says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

Place = tuple[Any, ...]


def tables_of(annotation: Any) -> list[type[BaseModel]]:
    """The tables that an annotation is made of: through optional, annotated, listed and named ones."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [each for part in get_args(annotation) for each in tables_of(part)]


def find_contradictions(model: type[BaseModel], given: Any, told: Sequence[Place]) -> Iterator[tuple[Place, str]]:
    """Where, and what; `told` has the places of what pydantic has found. A place that is a table was asked by it."""
    if not isinstance(given, Mapping) or () in told:
        return
    below: dict[Any, list[Place]] = {}
    for place in told:
        below.setdefault(place[0], []).append(place[1:])
    for text in _asked(_partly(model, given, below)):
        yield (), text
    for key, places in below.items():
        if key not in given or key not in model.model_fields:
            continue
        for at, table, value, deeper in _tables_in(model.model_fields[key].annotation, given[key], places):
            yield from (((key, *at, *where), text) for where, text in find_contradictions(table, value, deeper))


def _partly(model: type[BaseModel], mapping: Mapping[str, Any], below: Mapping[Any, list[Place]]) -> BaseModel:
    """The table with the fields that are fine, and without the others."""
    known = model.model_fields
    typed = {near for key in below if key not in known for near in get_close_matches(str(key), known, 1)}
    fine = {}
    for key, field in known.items():
        if key not in mapping:
            continue
        value = _fine_part(mapping[key], below[key]) if key in below else mapping[key]
        if value is not None:
            fine[key] = _made(field, value) if key not in below or isinstance(value, tuple) else value
    partly = model.model_construct(**fine)
    for key in known:
        if (key in below and key not in fine) or key in typed:
            partly.__dict__.pop(key, None)
    return partly


def _fine_part(value: Any, places: Sequence[Place]) -> Any:
    """Of a list what is fine of it, of named tables their names; None of anything else."""
    if () in places:
        return None
    bad = {place[0] for place in places}
    if isinstance(value, tuple):
        return tuple(each for number, each in enumerate(value) if number not in bad) or None
    return dict.fromkeys(value) if isinstance(value, Mapping) and () not in places else None


def _made(field: FieldInfo, value: Any) -> Any:
    """The value as the table would hold it."""
    wanted: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    try:
        return TypeAdapter(wanted).validate_python(value)
    except ValidationError:
        return value


def _asked(partly: BaseModel) -> Iterator[str]:
    for name in type(partly).__pydantic_decorators__.model_validators:
        try:
            getattr(partly, name)()
        except ValueError as error:
            yield str(error)
        except (AttributeError, TypeError, KeyError):
            continue  # it needs what is wrong by itself


def _tables_in(
    annotation: Any, value: Any, places: Sequence[Place]
) -> Iterator[tuple[Place, type[BaseModel], Any, list[Place]]]:
    """The tables below a field in which something was found: where each is, what it is, what was given, what was found
    in it."""
    tables = tables_of(annotation)
    if isinstance(value, tuple) and len(tables) == 1:
        for number in dict.fromkeys(place[0] for place in places if place):
            yield (number,), tables[0], value[number], [p[1:] for p in places if p and p[0] == number]
    elif isinstance(value, Mapping) and get_origin(annotation) is dict:
        yield from _named(tables, value, places)
    elif isinstance(value, Mapping) and len(tables) == 1:
        yield (), tables[0], value, list(places)


def _named(
    tables: Sequence[type[BaseModel]], value: Mapping[str, Any], places: Sequence[Place]
) -> Iterator[tuple[Place, type[BaseModel], Any, list[Place]]]:
    """Tables of several kinds, by name: pydantic names the kind after the name."""
    for name, kind in dict.fromkeys(place[:2] for place in places if len(place) > 1):
        for table in tables:
            field = table.model_fields.get("kind")
            if field and get_args(field.annotation) == (kind,):
                yield (name, kind), table, value[name], [p[2:] for p in places if p[:2] == (name, kind)]
