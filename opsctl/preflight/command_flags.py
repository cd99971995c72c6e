"""What a foreign trainer's command line says, in Megatron's and torchrun's words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

_ASSIGNMENT = r"(?:^|[\s;])(?:export\s+)?{}=[\"']?(\d+)\b"
_DIRECTIVE = re.compile(r"^#SBATCH\s+(--[\w-]+)[= ]\s*(\S+)", re.MULTILINE)


def words(command: Iterable[str]) -> list[str]:
    """The words of a command; those of a shell line in it one by one."""
    found: list[str] = []
    for word in command:
        try:
            found += shlex.split(word, comments=True) if any(c.isspace() for c in word) else [word]
        except ValueError:
            found.append(word)
    return found


def parse_flags(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Every `--flag` and what follows it: `--tp 4`, `--tp=4`; underscores are dashes. The last one counts."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words(command):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].replace("_", "-", word.partition("=")[0].count("_")).partition("=")
            found[name] = (value,) if equals else ()
        elif name:
            found[name] = (*found[name], word)
    return found


def parse_whole(word: str) -> int | None:
    """`9_765_625` as a number; None for what is not a number, or is filled in later."""
    text = word.replace("_", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def number(mapping: Mapping[str, tuple[str, ...]], *names: str) -> int | None:
    """The first of these flags that is a whole number."""
    numbers = (parse_whole(mapping[name][0]) for name in names if mapping.get(name))
    return next((each for each in numbers if each is not None), None)


def find_assignments(text: str, variable: str) -> list[int]:
    """What shell text sets the variable to, where that is a plain number."""
    return [int(each) for each in re.findall(_ASSIGNMENT.format(re.escape(variable)), text, re.MULTILINE)]


def directives(text: str) -> dict[str, str]:
    """`#SBATCH` lines of a script; nobody reads them where the script is run by another job."""
    return dict(_DIRECTIVE.findall(text))
