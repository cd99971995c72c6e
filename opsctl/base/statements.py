"""What opsctl states, as values, and the one place that words it: the sentences of templates/findings.toml.

Code decides on the kind and the values of a statement. Its sentence is for people only.
"""

import re
import shlex
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration, format_size

Value = str | int | float | None
"""A name or a number. Its unit ends the name: `age_s`, `size_bytes`, `used_percent`."""
QUOTE = "quote"
"""Kind of a text that opsctl did not word: of a program, a person, or a file of an earlier version."""
_OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
"""A part of a sentence in brackets, left out if a value in it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One fact: a kind from templates/findings.toml, the values of its sentence, and the statements it consists of."""

    kind: str
    facts: Mapping[str, Value] = field(default_factory=dict)
    parts: "tuple[Statement, ...]" = ()

    def __str__(self) -> str:
        return say(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to do now: commands to type, as words, and the advice around them."""

    commands: tuple[tuple[str, ...], ...] = ()
    advice: Statement | None = None

    def __str__(self) -> str:
        if self.advice:
            return say(self.advice, *self.commands)
        return "; ".join(" ".join(map(_quote_word, command)) for command in self.commands)


NO_REMEDY = Remedy()


def advise(kind: str, *commands: tuple[str, ...], **facts: Value) -> Remedy:
    """Return a remedy whose sentence names `commands` as {command0}, {command1}. Raises KeyError as `state` does."""
    return Remedy(commands=commands, advice=state(kind, **facts))


def type_now(*commands: tuple[str, ...]) -> Remedy:
    """Return a remedy that only consists of commands."""
    return Remedy(commands=commands)


def state(kind: str, *parts: Statement, **facts: Value | datetime) -> Statement:
    """Return a statement. Raises KeyError for a kind without a sentence: the vocabulary is closed."""
    read_sentences()[kind]
    values = {name: fact.isoformat() if isinstance(fact, datetime) else fact for name, fact in facts.items()}
    return Statement(kind=kind, facts=values, parts=parts)


def quote(text: str) -> Statement:
    """Return the statement of a text that opsctl did not word."""
    return Statement(kind=QUOTE, facts={"text": text})


def say(statement: Statement, *commands: tuple[str, ...]) -> str:
    """Return the sentence of `statement`; `commands` fill {0}, {1}. Never raises: a newer version may have written it.

    A kind that this version does not know is shown with its values.
    """
    sentence = read_sentences().get(statement.kind)
    if sentence is None:
        pairs = [f"{name} {value}" for name, value in statement.facts.items()]
        return ": ".join([statement.kind, *([", ".join(pairs)] if pairs else [])])
    values: dict[str, Value] = {**statement.facts, "parts": "; ".join(map(say, statement.parts))}
    for number, command in enumerate(commands):
        values[f"command{number}"] = " ".join(map(_quote_word, command))
    return fill_sentence(sentence, values)


def say_below(statement: Statement, name: str) -> str:
    """Return the sentence for a place that shows the value `name` already: without it, if the sentence can do so."""
    sentence = read_sentences().get(statement.kind, "")
    if not any(f"{{{name}}}" in part for part in _OPTIONAL.findall(sentence)):
        return say(statement)
    known = {key: value for key, value in statement.facts.items() if key != name}
    text = say(replace(statement, facts=known))
    return text[:1].upper() + text[1:]


def fill_sentence(sentence: str, values: Mapping[str, Any]) -> str:
    """Return `sentence` with its values, without the parts in brackets whose value is missing."""

    def keep(part: re.Match[str]) -> str:
        names = [name.partition(".")[0] for _, name, _, _ in _WORDING.parse(part[1]) if name]
        return part[1] if all(values.get(name) not in {None, ""} for name in names) else ""

    count = 1
    while count:  # the inner brackets first
        sentence, count = _OPTIONAL.subn(keep, sentence)
    return str(_WORDING.vformat(sentence, (), values))


@cache
def read_sentences() -> dict[str, str]:
    """Return the sentences by kind, `table.name` in the file."""
    sentences = {QUOTE: "{text}"}
    for table, rows in read_package_table("templates/findings.toml").items():
        sentences |= {f"{table}.{name}": sentence for name, sentence in rows.items()}
    return sentences


class _Wording(string.Formatter):
    """Formats values by what they are: `{age_s:duration}`, `{size_bytes:size}`, `{lines:count log line}`."""

    def get_value(self, key: int | str, _: Any, kwargs: Any) -> Any:
        return kwargs.get(key, "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        kind, _, noun = format_spec.partition(" ")
        if value is None:
            return "?"
        if kind == "utc":
            return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        if isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return ", ".join(value)
        if kind == "count":
            return f"{value} {noun}{'s' * (value != 1)}"
        format_value = _FORMATS.get(kind)
        return format_value(value) if format_value else str(format(value, format_spec))


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


_WORDING = _Wording()
_FORMATS: dict[str, Callable[[float], str]] = {
    "duration": format_duration,
    "size": format_size,
    "hours": _format_hours,
}


def _quote_word(word: str) -> str:
    """Return a word as one types it; `...` stands for what the reader has to add."""
    return word if word == "..." else shlex.quote(word)
