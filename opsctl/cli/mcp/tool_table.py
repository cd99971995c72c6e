"""The tools of `opsctl mcp`, from the table tools.toml: their arguments, and the command lines that they become."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table

MAX_ARGUMENT_CHARS = 1000
_UNFIT = re.compile(r"[\0-\x1f\ud800-\udfff]")
"""No word of a command line holds them: control characters, and halves of characters."""
MAX_PROBLEMS = 5
"""Unknown arguments that are named."""
MARK = "(by opsctl mcp)"
"""Stands behind the reasons of actions, so that journals and alerts show that a program acted."""
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgument:
    name: str
    type: str
    """A type of JSON Schema: a key of TYPES."""
    description: str
    option: str = ""
    """The option of the command; empty for an argument of the command."""
    required: bool = False
    default: str | int | float | None = None
    minimum: float = -math.inf
    maximum: float = math.inf
    marked: bool = False
    """Whether MARK is put behind the value."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the value."""
        fields: dict[str, Any] = {"type": self.type, "description": self.description}
        if self.type == "string":
            fields["maxLength"] = MAX_ARGUMENT_CHARS
        if self.default is not None:
            fields["default"] = self.default
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        return fields | {name: bound for name, bound in bounds.items() if math.isfinite(bound)}

    def to_text(self, value: object) -> str:
        """Return the value as a word of the command line. Raises InputError."""
        if self.type == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # an integer of JSON Schema
        if isinstance(value, bool) or not isinstance(value, TYPES[self.type]):
            raise InputError(f"{self.name}: {value!r:.60} is not of type {self.type}")
        if isinstance(value, int | float) and not self.minimum <= value <= self.maximum:
            lowest, highest = f"{self.minimum:g}", f"{self.maximum:g}"
            bounds = f"within {lowest} and {highest}" if math.isfinite(self.maximum) else f"{lowest} or more"
            raise InputError(f"{self.name}: {value} is not {bounds}")
        text = str(value)
        if len(text) > MAX_ARGUMENT_CHARS or _UNFIT.search(text):
            raise InputError(f"{self.name}: longer than {MAX_ARGUMENT_CHARS} characters, or with control characters")
        if self.required and not text.strip():
            raise InputError(f"{self.name}: is empty")
        return f"{text} {MARK}" if self.marked else text


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTool:
    """One row of tools.toml."""

    name: str
    title: str
    description: str
    command: tuple[str, ...]
    arguments: tuple[ToolArgument, ...] = ()
    json_lines: bool = False
    acts: bool = False
    timeout_s: float = 60.0

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {argument.name: argument.schema() for argument in self.arguments},
            "required": [argument.name for argument in self.arguments if argument.required],
            "additionalProperties": False,
        }

    def command_line(self, values: Mapping[str, object]) -> list[str]:
        """Return the words after `opsctl`. No value can become an option. Raises InputError with every problem."""
        known = [argument.name for argument in self.arguments]
        problems = [
            f"{self.name}: unknown argument {name!r:.60}; known: {', '.join(known) or 'none'}"
            for name in sorted(set(values) - set(known))[:MAX_PROBLEMS]
        ]
        options, positional = [], []
        for argument in self.arguments:
            value = values.get(argument.name)
            value = argument.default if value is None else value
            if value is None:
                problems += [f"{self.name}: the argument {argument.name!r} is required"] * argument.required
                continue
            try:
                text = argument.to_text(value)
            except InputError as error:
                problems.append(error.message)
                continue
            if argument.option:
                options.append(f"{argument.option}={text}")
            else:
                positional.append(text)
        if problems:
            raise InputError("\n".join(problems))
        return [*self.command, *options, *(["--", *positional] if positional else [])]


@cache
def load_tools() -> dict[str, AssistantTool]:
    table = read_package_table("cli/mcp/tools.toml")
    return {name: _read_tool(name, dict(fields)) for name, fields in table.items()}


def offered_tools(*, has_actions: bool) -> dict[str, AssistantTool]:
    """Return the tools that a server offers: those that act only if `has_actions`."""
    return {name: tool for name, tool in load_tools().items() if has_actions or not tool.acts}


def _read_tool(name: str, fields: dict[str, Any]) -> AssistantTool:
    arguments = tuple(
        ToolArgument(name=argument, **settings) for argument, settings in fields.pop("arguments", {}).items()
    )
    command, description = tuple(fields.pop("command")), fields.pop("description").strip()
    return AssistantTool(name=name, command=command, description=description, arguments=arguments, **fields)
