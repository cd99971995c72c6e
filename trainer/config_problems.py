"""The problems of a settings file in the words of the file: the key, what is wrong, and what is known there.

Contradictions between fields are reported together with the errors of single fields: pydantic calls the validators of
a table only if all its fields are valid, and the same for the tables around, so that a user would see contradictions
only at the second attempt. Here the validators are called with the valid fields; a validator that needs an invalid
field is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

Place = tuple[Any, ...]
"""Keys and indices from the outermost table to a value."""
MAX_PROBLEMS = 200
"""Described of one file, which another user may have filled with a million keys."""
MAX_JOINED_PROBLEMS = 20
"""Named in one line."""
UNITS = ("seconds", "minutes", "hours", "days")
"""Ends of keys that take a number or a duration."""
PLAIN_WORDS = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid dictionary": "a table",
}
"""For words of pydantic that a settings file has not."""


def list_problems(model: type[BaseModel], value: Any, error: ValidationError, under: tuple[str, ...] = ()) -> list[str]:
    """Return the problems of single fields, then those between fields."""
    errors = [error_details for error_details in error.errors() if not _is_echo(error_details)][:MAX_PROBLEMS]
    places = [error_details["loc"] for error_details in errors]
    contradictions = [
        {"loc": place, "type": "value_error", "msg": text, "input": None}
        for place, text in _find_contradictions(model, value, places)
    ]
    return [_describe(model, error_details, under=under) for error_details in (*errors, *contradictions)]


def join_problems(model: type[BaseModel], error: ValidationError) -> str:
    """Return the problems of single fields in one line."""
    problems = error.errors()
    described = [_describe(model, error_details) for error_details in problems[:MAX_JOINED_PROBLEMS]]
    more = len(problems) - MAX_JOINED_PROBLEMS
    return "; ".join([*described, *([f"and {more} more"] if more > 0 else [])])


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
        return f"{place}: unknown key; {_advise(str(key), known)}"
    if error["type"] == "union_tag_invalid":
        kind, kinds = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"{place}: kind {kind!r:.60} is unknown; {_advise(str(kind), kinds)}"
    if error["type"] == "union_tag_not_found":
        return f"{place}: kind is missing"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    for words, plain in PLAIN_WORDS.items():
        message = message.replace(words, plain)
    message = message.partition(" or instance of ")[0]
    unit = key.rpartition("_")[2]
    if error["type"] in ("int_type", "float_type") and isinstance(error["input"], str) and unit in UNITS:
        message += f" of {unit}, or a duration such as '90m'"
    if error["type"] == "missing":
        return f"{place}: missing"
    # A table is not shown, since a table may contain a secret.
    is_shown = error["type"] != "value_error" and not isinstance(error["input"], dict)
    shown = f", got {_show(error['input']):.60}" if is_shown else ""
    return f"{place}: {message}{shown}" if place else f"{message}{shown}"


def _show(value: object) -> str:
    """Return a value in the words of TOML. The items of a list are not shown, since one may contain a secret."""
    if isinstance(value, tuple):
        return "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _advise(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


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
            below += _tables_of(field.annotation)
        models = below or of_kind or models
        if fields or not of_kind:
            names.append(str(key))
    return models, names


def _is_of_kind(table: type[BaseModel], kind: Any) -> bool:
    field = table.model_fields.get("kind")
    return field is not None and get_args(field.annotation) == (kind,)


def _tables_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the tables in an annotation: plain, optional, annotated, in a list or in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    tables: list[type[BaseModel]] = []
    for part in get_args(annotation):
        tables += _tables_of(part)
    return tables


def _find_contradictions(
    model: type[BaseModel], value: Any, errors: Sequence[Place], at: Place = ()
) -> Iterator[tuple[Place, str]]:
    """Yield the place and the message of each contradiction in the table `at` this place.

    `errors` are the places of pydantic's errors in the table. The place () means that pydantic has called the table's
    validators.
    """
    if not isinstance(value, Mapping) or () in errors:
        return
    by_key: dict[Any, list[Place]] = {}
    for place in errors:
        by_key.setdefault(place[0], []).append(place[1:])
    for text in _call_validators(_construct_valid_part(model, value, by_key)):
        yield at, text
    for key, places in by_key.items():
        if key in value and key in model.model_fields:
            yield from _find_below(model.model_fields[key].annotation, value[key], places, (*at, key))


def _construct_valid_part(
    model: type[BaseModel], mapping: Mapping[str, Any], errors_by_key: Mapping[Any, list[Place]]
) -> BaseModel:
    """Return the table with its valid fields, without attributes for the invalid ones."""
    known = model.model_fields
    valid = {key: _convert(known[key], mapping[key]) for key in known.keys() & mapping.keys() - errors_by_key.keys()}
    invalid = set()
    for key in known.keys() & mapping.keys() & errors_by_key.keys():
        part = _valid_part(mapping[key], errors_by_key[key])
        if part is None:
            invalid.add(key)
        else:
            valid[key] = _convert(known[key], part) if isinstance(part, tuple) else part
    for key in errors_by_key.keys() - known.keys():  # perhaps a misspelt field
        invalid.update(get_close_matches(str(key), known, 1))
    table = model.model_construct(**valid)
    for key in invalid | (errors_by_key.keys() - mapping.keys()):
        table.__dict__.pop(key, None)
    return table


def _valid_part(value: Any, errors: Sequence[Place]) -> Any:
    """Return the valid items of a list, the names of a mapping's tables, and None for other values."""
    if () in errors:
        return None
    if isinstance(value, tuple):
        invalid = {place[0] for place in errors}
        return tuple(item for index, item in enumerate(value) if index not in invalid) or None
    return dict.fromkeys(value) if isinstance(value, Mapping) else None


def _convert(field: FieldInfo, value: Any) -> Any:
    """Return the value as the table would store it."""
    annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return value


def _call_validators(table: BaseModel) -> Iterator[str]:
    for name in type(table).__pydantic_decorators__.model_validators:
        try:
            getattr(table, name)()
        except ValueError as error:
            yield str(error)
        except (AttributeError, TypeError, KeyError):
            continue  # the validator needs an invalid field


def _find_below(annotation: Any, value: Any, errors: Sequence[Place], at: Place) -> Iterator[tuple[Place, str]]:
    """Yield the contradictions in the tables of a field with errors."""
    tables = _tables_of(annotation)
    if isinstance(value, tuple) and len(tables) == 1:
        for index in dict.fromkeys(place[0] for place in errors if place):
            of_item = [place[1:] for place in errors if place and place[0] == index]
            yield from _find_contradictions(tables[0], value[index], of_item, (*at, index))
    elif isinstance(value, Mapping) and get_origin(annotation) is dict:
        # Named tables of several kinds: pydantic puts the kind behind the name.
        for name, kind in dict.fromkeys(place[:2] for place in errors if len(place) > 1):
            of_table = [place[2:] for place in errors if place[:2] == (name, kind)]
            for table in (table for table in tables if _is_of_kind(table, kind)):
                yield from _find_contradictions(table, value[name], of_table, (*at, name, kind))
    elif isinstance(value, Mapping) and len(tables) == 1:
        yield from _find_contradictions(tables[0], value, errors, at)
