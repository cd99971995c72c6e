"""The options in `#SBATCH` lines, read as sbatch reads them: getopt_long, with abbreviations and short options.

Source: getopt_long(3): a prefix of a long option's name stands for the option, if no other option has the prefix.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from opsctl.base.tables import read_package_table

MAX_LINE_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    """One option as written, and the long names that it may stand for: none if unknown, several if ambiguous."""

    text: str
    names: frozenset[str]
    is_exact: bool = True
    """Whether the text is a full name or a known short option."""
    value: str = ""


@cache
def _load() -> tuple[Mapping[str, tuple[str, str]], Mapping[str, str]]:
    """Return the options by long name, and the options that have a second name."""
    table = read_package_table("slurm/batch_options.toml")
    return {name: (short, value) for name, (short, value) in table["options"].items()}, table["same"]


def list_options(line: str) -> Iterator[BatchOption]:
    """Yield every option of a line such as `--hint=nomultithread -a1-3`; a word that is no option has no names."""
    try:
        words = iter(shlex.split(line[:MAX_LINE_CHARS], comments=True))
    except ValueError:  # an unbalanced quote
        words = iter([line])
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            names = _find_long(name)
            is_followed = not equals and len(_unify(names)) == 1 and _load()[0][min(names)][1] == "must"
            options = [BatchOption(text=f"--{name}", names=_unify(names), is_exact=name in names, value=value)]
        else:
            options, is_followed = _split_short(word)
        *first, last = options or [BatchOption(text=word, names=frozenset())]
        yield from first
        yield replace(last, value=next(words, "")) if is_followed else last


def find_values(lines: Iterable[str], *names: str) -> list[str]:
    """Return the values of the options with one of these long names, however they are written."""
    options = chain.from_iterable(map(list_options, lines))
    return [option.value for option in options if len(option.names) == 1 and option.names & set(names)]


def read_directives(script: str) -> dict[str, str]:
    """Return the `#SBATCH` options of a script by their long names. Slurm ignores them if another job runs the script.

    sbatch reads the lines up to the first command.
    """
    found: dict[str, str] = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            found |= {min(option.names): option.value for option in list_options(line[7:]) if len(option.names) == 1}
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _find_long(name: str) -> frozenset[str]:
    options, _ = _load()
    return frozenset({name} if name in options else {option for option in options if name and option.startswith(name)})


def _unify(names: frozenset[str]) -> frozenset[str]:
    _, same = _load()
    return frozenset(same.get(name, name) for name in names)


def _split_short(word: str) -> tuple[list[BatchOption], bool]:
    """Return the options of a word such as `-Ha1-3`, and whether the next word is the value of the last one."""
    options = {short: (name, value) for name, (short, value) in _load()[0].items() if short}
    found: list[BatchOption] = []
    if not word.startswith("-"):
        return [BatchOption(text=word, names=frozenset(), is_exact=False)], False
    for position, letter in enumerate(word[1:], start=1):
        if letter not in options:
            found.append(BatchOption(text=f"-{letter}", names=frozenset(), is_exact=False))
            continue
        name, value = options[letter]
        found.append(BatchOption(text=f"-{letter}", names=frozenset({name})))
        if value != "cannot":
            found[-1] = replace(found[-1], value=word[position + 1 :])
            return found, value == "must" and position == len(word) - 1
    return found, False
