"""The words of a trainer's command: options within shell scripts, values of variables, configuration files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from opsctl.state.files import read_bounded

MAX_WORDS = 4000
MAX_CONFIG_FILES = 8
MAX_SCRIPTS = 4
MAX_CONFIG_BYTES = 1 << 20
MAX_LINE_CHARS = 4096
MAX_COMMAND_CHARS = 1 << 18
"""A longer command is not read: to split a text into words takes a microsecond for each character."""
MAX_WORD_CHARS = 4096
"""The variables of a longer word are not replaced: values that name values grow without bound."""
MAX_NESTING = 3
"""Scripts within scripts: bash -c "srun bash -c '...'"."""

_PLACEHOLDER = re.compile(r"\{\{\s*checkpoint_dir\s*\}\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_SCRIPT = re.compile(r"\.(?:sh|bash|slurm|sbatch)$")
_COMMENT = re.compile(r"(?m)^[^\S\n]*#.*$")
_YAML_LINE = re.compile(r"( *)([\w.-]+)\s*:\s*(.*)")
_PYTHON_LINE = re.compile(
    r"(?<![\w.])([A-Za-z_][\w.]*)\s*(?::\s*\w+\s*)?=\s*[\"']([^\"']+)[\"']\s*(?:#.*)?$", re.MULTILINE
)


def split_words(command: Sequence[str], environment: Mapping[str, str], checkpoints: Path) -> list[str]:
    """Return the words of a command and of the scripts in it; variables and `{{ checkpoint_dir }}` are replaced.

    A variable that is neither in `environment` nor set in the script stays as written.
    """
    if sum(map(len, command)) > MAX_COMMAND_CHARS:
        return []
    variables = dict(environment)
    words = islice(_split(command, checkpoints, MAX_NESTING), MAX_WORDS)
    replaced = []
    for word in words:
        text = _replace_variables(word, variables)
        if match := _ASSIGNMENT.fullmatch(text):
            variables.setdefault(match[1], match[2])
        replaced.append(text)
    return replaced


def _split(words: Sequence[str], checkpoints: Path, depth: int) -> Iterator[str]:
    for word in words:
        text = _PLACEHOLDER.sub(lambda _: str(checkpoints), word)
        if depth and re.search(r"\s", text.strip()):
            yield from _split(_shell_words(text), checkpoints, depth - 1)
        else:
            yield text


def _shell_words(script: str) -> list[str]:
    """Return the words of a shell script, without the punctuation of the shell."""
    try:
        words = shlex.split(script.replace("\\\n", " ").replace("=(", "=( "), comments=False)
    except ValueError:
        words = script.split()
    return [word.rstrip(";&|)") for word in words if word.strip(";&|()")]


def _replace_variables(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name, match[2] if match[2] is not None else match[0])

    if len(text) > MAX_WORD_CHARS:
        return text
    replaced = _VARIABLE.sub(value, text)
    return replaced if len(replaced) <= MAX_WORD_CHARS else text


def resolve(text: str) -> str:
    """Return a path with ~ replaced, without quotes."""
    return os.path.expanduser(text.strip().strip("\"'"))  # noqa: PTH111 (Path.expanduser raises for an unknown user)


def read_scripts(words: Sequence[str], directory: Path) -> list[str]:
    """Return the texts of the shell scripts that the command names, without comments."""
    texts: list[str] = []
    for path in dict.fromkeys(directory / resolve(word) for word in words if _SCRIPT.search(word) and "\0" not in word):
        with contextlib.suppress(OSError):
            if _is_regular(path) and len(texts) < MAX_SCRIPTS:
                # As for configuration files.
                text = read_bounded(path, MAX_CONFIG_BYTES, follow=True).decode(errors="replace")
                texts.append(_COMMENT.sub("", text))
    return texts


def config_files(words: Sequence[str], directory: Path) -> list[Path]:
    """Return the configuration files that the command names, as far as they exist."""
    paths = []
    for word in words:
        text = resolve(word.rpartition("=")[2])
        if re.search(r"\.(?:ya?ml|toml|json|py)$", text) and "\0" not in text:
            path = directory / text
            if path not in paths and _is_regular(path):
                paths.append(path)
    return paths[:MAX_CONFIG_FILES]


def _is_regular(path: Path) -> bool:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_CONFIG_BYTES


def read_config(path: Path) -> dict[str, str]:
    """Return the texts of a configuration file by their keys, tables joined by dots; empty if it cannot be read."""
    try:
        # The configuration of a trainer may be a link, and lies where the code of the train lies.
        text = read_bounded(path, MAX_CONFIG_BYTES, follow=True).decode(errors="replace")
        if path.suffix == ".py":
            return {match[1]: match[2] for match in _PYTHON_LINE.finditer(text)}
        if path.suffix in {".yaml", ".yml"}:
            return _read_yaml(text)
        return dict(_flatten(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)))
    except (OSError, ValueError, RecursionError):
        return {}


def _flatten(value: Any, prefix: str = "", depth: int = 16) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key), depth - 1)
    elif isinstance(value, str):
        yield prefix, value


def _read_yaml(text: str) -> dict[str, str]:
    """Return the plain values of a YAML file. Lists, anchors and texts over several lines are left out."""
    values: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _YAML_LINE.fullmatch(line.rstrip()) if len(line) <= MAX_LINE_CHARS else None
        if match is None:
            continue
        indent, key, value = len(match[1]), match[2], re.sub(r"(?<!\s)\s+#.*$", "", match[3]).strip()
        while parents and parents[-1][0] >= indent:
            parents.pop()
        dotted = ".".join([*(name for _, name in parents), key])
        if not value or value.startswith(("&", "#")):
            parents.append((indent, key))
        elif value[0] not in "[{|>*!":
            values.setdefault(dotted, value.strip("\"'"))
    return values
