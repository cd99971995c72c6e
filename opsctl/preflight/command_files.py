"""The files that a command names, and which of them are missing where the trainer starts."""

import re
import shutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain, pairwise
from pathlib import Path

from opsctl.checkpoints.trainer_command.shell import END, split_command
from opsctl.preflight.facts import MisplacedPath
from opsctl.settings.loader import TrainSettings
from opsctl.settings.setup import ShellSetup

SCRIPTS = (".py", ".sh", ".bash")
CONTAINERS = {"apptainer", "singularity", "docker", "podman", "enroot", "ch-run", "sarus", "shifter"}
"""Programs that run a command in a container, where paths differ."""
PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "accelerate", "apptainer", "singularity", "mpirun", "bash")
"""Programs that often start a trainer; a name much like one of these is a slip."""
SOURCED = re.compile(r"^\s*(?:source|\.)\s+([^\s;&|$`*]+)")
"""A setup line that reads a file."""
SHELLS = {"bash", "sh", "dash", "zsh", "ksh"}
VALUE_OPTIONS = {"-X", "-W", "-o", "+o", "-O"}
"""Options of interpreters that take the next word as their value."""
NODE_LOCAL = ("/opt", "/usr", "/local", "/scratch", "/tmp", "/var", "/run", "/dev", "/mnt")  # noqa: S108 (only compared)
"""Directories that compute nodes may have on disks of their own."""
MAKES_FILES = re.compile(
    r"\b(cp|mv|ln|tar|unzip|rsync|scp|curl|wget|git|mkdir|mount|squashfuse|touch|tee|dd|install|make|pip|cat)\b|>"
)
"""Setup lines that may make a file, or make one visible."""
MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
SETTINGS_OPTION = re.compile(
    r"--?(?:[\w.-]*config(?:[_-](?:file|path))?|deepspeed|deepspeed[_-]config|yaml[_-]cfg|ds[_-]config)"
)
"""Options of trainers and launchers that take a settings file."""
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")


def find_misplaced_paths(
    train: TrainSettings, run: Path, base: Path, extra: Sequence[str] = ()
) -> Iterator[MisplacedPath]:
    """Yield files of the command that do not exist. Skips paths that a shell, placeholder or container changes.

    `run` is the run directory, `base` the directory of the launch, `extra` the further #SBATCH options.
    """
    command = [_PLACEHOLDER.sub("$", word) for word in split_command(train.command)]
    yield from _find_missing_sources(train)
    if any("cd " in line for line in train.setup.lines) or runs_container(command, extra):
        return
    start, started = run / train.setup.directory, find_started_words(command)
    yield from _find_missing_modules(command, start)
    yield from _find_missing_settings(command, start, base, train.setup)
    for position, word in enumerate(command):
        path = word.partition("=")[2] if word.startswith("-") else word
        if "$" in path or path in {"", END} or exists(start / path) is not False:
            continue
        is_started = position in started
        if position == 0 and "/" not in path:
            sets_path = train.setup.lines or train.setup.modules or "PATH" in train.environment
            if shutil.which(path) is None and not sets_path:
                yield MisplacedPath(path=path, is_needed=path not in PROGRAMS)
            elif shutil.which(path) is None and find_program(path) and path not in PROGRAMS:
                yield MisplacedPath(path=path)
        elif is_started or path.endswith(SCRIPTS) or (Path(path).suffix and (base / path).is_file()):
            yield MisplacedPath(
                path=path,
                here=str(base) if exists(base / path) else "",
                is_needed=is_started and not may_appear(path, start, train.setup),
            )


def _find_missing_sources(train: TrainSettings) -> Iterator[MisplacedPath]:
    """Yield the files that a setup line reads and that do not exist, unless only the nodes may have them."""
    for position, line in enumerate(train.setup.lines):
        match = SOURCED.match(line)
        path = Path(match[1]).expanduser() if match and match[1].startswith(("/", "~/")) else None
        is_made = any(MAKES_FILES.search(before) for before in train.setup.lines[:position])
        if path and exists(path) is False and not is_made and not _is_on_nodes(str(path), Path.home()):
            yield MisplacedPath(path=str(path), origin="[setup] lines")


def _find_missing_modules(command: Sequence[str], start: Path) -> Iterator[MisplacedPath]:
    """Yield a module that is missing in a package of the directory in which the trainer starts."""
    for flag, module in pairwise(command):
        parts = module.split(".")
        if flag == "-m" and len(parts) > 1 and MODULE.fullmatch(module) and exists(start / parts[0] / "__init__.py"):
            path = start.joinpath(*parts)
            if exists(path.with_suffix(".py")) is False and exists(path) is False:
                yield MisplacedPath(path="/".join(parts) + ".py")


def _find_missing_settings(
    command: Sequence[str], start: Path, base: Path, setup: ShellSetup
) -> Iterator[MisplacedPath]:
    """Yield settings files that options name and that exist neither at the start nor at the launch."""
    words_ = list(chain.from_iterable(word.split("=", 1) for word in command))
    for option, path in pairwise(words_):
        is_settings = SETTINGS_OPTION.fullmatch(option) and path.endswith((".toml", ".yaml", ".yml", ".json"))
        is_missing = "$" not in path and exists(start / path) is exists(base / path) is False
        if is_settings and is_missing and not may_appear(path, start, setup):
            yield MisplacedPath(path=path)


def find_started_words(command: Sequence[str]) -> set[int]:
    """Return the positions of the program and of the script that it runs, as far as the words show them."""
    if not command:
        return set()
    program = Path(command[0]).name
    is_interpreter = program in SHELLS or program.startswith("python")
    position = 1
    while is_interpreter and position < len(command):
        word = command[position]
        if word == "-c":
            return {0}
        if word == "-m":
            break
        if not word.startswith(("-", "+")):
            return {0, position}
        position += 2 if word in VALUE_OPTIONS else 1
    for position in range(1, len(command)):  # a launcher such as torchrun
        if command[position].endswith(SCRIPTS) and not command[position - 1].startswith("-"):
            return {0, position}
    return {0}


def may_appear(path: str, start: Path, setup: ShellSetup) -> bool:
    """Return whether a missing file may exist on the nodes: made by a setup line, or on a disk of the nodes."""
    name = Path(path).name
    is_made = any(name in line or MAKES_FILES.search(line) for line in setup.lines)
    return is_made or _is_on_nodes(path, start)


def _is_on_nodes(path: str, start: Path) -> bool:
    """Return whether a path may lie on a file system that only the nodes have."""
    if path.startswith("/") and len(Path(path).parents) > 1 and exists(Path(path).parents[-2]) is False:
        return True
    if not path.startswith(NODE_LOCAL):
        return False
    existing = next(directory for directory in Path(path).parents if exists(directory))
    anchor = next(directory for directory in (start, *start.parents) if exists(directory))
    return existing.stat().st_dev != anchor.stat().st_dev


def runs_container(command: Sequence[str], extra: Sequence[str]) -> bool:
    """Return whether the command runs in a container, where paths differ."""
    return any(Path(word).name in CONTAINERS for word in command) or any("--container" in option for option in extra)


def exists(path: Path) -> bool | None:
    """Return whether `path` exists; None if permissions or an invalid name hide the answer."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True


def find_program(word: str) -> str:
    """Return the program of PROGRAMS that is much like `word`; empty if none is."""
    return next(iter(get_close_matches(word, PROGRAMS, 1, 0.8)), "")


def name_mistake(missing: MisplacedPath) -> str:
    """Return which problem of `files` in checks.toml a missing file of the command is."""
    is_name = "/" not in missing.path
    if missing.origin != "command":
        return "of_setup"
    if missing.path in PROGRAMS:
        return "no_program_here"
    if is_name and not missing.is_needed and find_program(missing.path):
        return "misspelt_program"
    return "no_program" if is_name and missing.is_needed and not missing.path.endswith(SCRIPTS) else "missing"
