"""The flags in the command line of Megatron, torchrun and other trainers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

_ASSIGNMENT = r"(?:^|[\s;])(?:export\s+)?{}=[\"']?(\d{{1,9}})\b"
COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
"""A comment of a shell script."""
_DIRECTIVE = re.compile(r"^#SBATCH\s+(--[\w-]+)[= ]\s*(\S+)", re.MULTILINE)


def words(command: Iterable[str]) -> list[str]:
    """Split a command into words, shell lines in it included."""
    result: list[str] = []
    for word in command:
        try:
            result += shlex.split(word, comments=True) if any(c.isspace() for c in word) else [word]
        except ValueError:
            result.append(word)
    return result


def parse_flags(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return every `--flag` with its values: `--tp 4`, `--tp=4`. Underscores become dashes; the last value counts."""
    values: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words(command):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].replace("_", "-", word.partition("=")[0].count("_")).partition("=")
            values[name] = (value,) if equals else ()
        elif name:
            values[name] = (*values[name], word)
    return values


def parse_whole(word: str) -> int | None:
    """Read `9_765_625` as a number; None for other words, such as placeholders."""
    text = word.replace("_", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def number(mapping: Mapping[str, tuple[str, ...]], *names: str) -> int | None:
    """Return the first of these flags that is a whole number."""
    numbers = (parse_whole(mapping[name][0]) for name in names if mapping.get(name))
    return next((value for value in numbers if value is not None), None)


def find_assignments(text: str, variable: str) -> list[int]:
    """Return the numbers that shell text assigns to the variable."""
    code = COMMENT.sub("", text)
    return [int(digits) for digits in re.findall(_ASSIGNMENT.format(re.escape(variable)), code, re.MULTILINE)]


def directives(text: str) -> dict[str, str]:
    """Return the `#SBATCH` options of a script. Slurm ignores them if another job runs the script."""
    return dict(_DIRECTIVE.findall(text))
