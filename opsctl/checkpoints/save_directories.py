"""Find the directories that a train saves its checkpoints to, each with the reason. Needs no torch."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from opsctl.base.tables import read_package_table
from opsctl.checkpoints.layouts import fit_name
from opsctl.checkpoints.trainer_command.read_command import expand, find_outside, parse_options, read_command

MAX_DIRECTORIES = 16
TOO_WIDE = frozenset(map(Path, ("/", "/home", "/tmp", "/root", "/data", "/scratch", "/work", "/mnt", "/usr", "/var")))  # noqa: S108 (a directory that is never scanned)
"""Directories that are not scanned as a whole: a trainer that saves there names a directory below."""
USUAL = re.compile(
    r"(?i)(?:model_?|train_?)?(?:ckpts?|checkpoints?|outputs?|out|saves?|saved(?:_models?)?|weights|results|snapshots?"
    r"|lightning_logs|runs?|experiments?|exps?|models?)(?:_dir)?"
)
"""Names of directories that scripts save to."""
WEIGHTS = re.compile(r"[\w.=-]+\.(?:pt|pth|ckpt|pth\.tar|safetensors|msgpack|eqx|keras)")
"""Names of files of weights that scripts write into the working directory."""
MAX_USUAL = 8
CERTAIN_TIERS, UNCERTAIN_TIERS = (1, 2), (3,)
"""The uncertain one: options and variables that often name the checkpoints, such as --ckpt and CKPT_DIR."""
NO_PATH = re.compile(r"(?i)[\d.]+|true|false|none|null|yes|no|auto|latest|last|best")
"""Values of options that are no path, such as `--checkpoint 500`."""
MAX_ENTRIES = 10_000

_LISTS = ("options", "keys", "below")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDirectory:
    """A directory with checkpoints of the train."""

    path: Path
    reason: str
    """What names the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRow:
    """One row of save_options.toml, which explains the fields."""

    options: tuple[str, ...]
    keys: tuple[str, ...]
    tier: int
    trainers: str
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCommand:
    """The command of a train, and what is needed to understand its words."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    """The working directory of the trainer."""
    checkpoints: Path
    """What `{{ checkpoint_dir }}` stands for, in the run directory."""
    mounts: Mapping[Path, Path] = field(default_factory=dict)
    """The paths outside of the trainer's container, by those inside."""


@cache
def load_rows() -> tuple[SaveRow, ...]:
    rows = read_package_table("checkpoints/save_options.toml")["save"]
    return tuple(SaveRow(**{**row, **{key: tuple(row.get(key, ())) for key in _LISTS}}) for row in rows)


def find_save_directories(
    command: TrainCommand, *, configured: Sequence[str] = (), logged: Sequence[str] = ()
) -> list[SaveDirectory]:
    """Return the directories with their reasons, without repetition, at most MAX_DIRECTORIES.

    `configured` are the directories that TRAIN.toml names, `logged` the paths of checkpoints that the log names.
    """
    named = [(text, "TRAIN.toml, [progress] checkpoint_directories") for text in configured]
    named += [(str(command.checkpoints), "the run directory")]
    found = find_in_command(command) + [(_directory_of(text), "a save in the log") for text in logged]
    named += found or ([] if configured else _find_named(command, UNCERTAIN_TIERS) + find_usual(command))
    directories: dict[Path, SaveDirectory] = {}
    for text, reason in named:
        path = _absolute(text, command)
        if path is not None and path not in directories and path not in TOO_WIDE:
            directories[path] = SaveDirectory(path=path, reason=reason)
    return _drop_nested(list(directories.values()))[:MAX_DIRECTORIES]


def find_usual(command: TrainCommand) -> list[tuple[str, str]]:
    """Return what changed in the working directory since the launch: usual directories, and the newest weights.

    Only for a train that names no directory: scripts of one's own often save to a fixed place. The directory of all
    trains does not count: checkpoints of other trains lie there.
    """
    try:
        launched_ns = command.checkpoints.stat().st_mtime_ns
        with os.scandir(command.directory) as entries:
            named = list(islice(entries, MAX_ENTRIES))
        usual = [entry for entry in named if USUAL.fullmatch(entry.name) and entry.is_dir()]
        usual += [entry for entry in named if WEIGHTS.fullmatch(entry.name) and entry.is_file()]
        changed = {entry.path: entry.stat().st_mtime_ns for entry in usual}
    except OSError:
        return []
    newest_first = sorted(changed, key=lambda path: changed[path], reverse=True)
    own = Path(os.path.realpath(command.checkpoints))
    others = [path for path in newest_first if changed[path] > launched_ns]
    others = sorted(path for path in others if not own.is_relative_to(os.path.realpath(path)))[:MAX_USUAL]
    return [(path, "its name in the working directory") for path in others]


def find_in_command(command: TrainCommand) -> list[tuple[str, str]]:
    """Return the directories that the command or a configuration file in it names, with the reasons."""
    return _find_named(command, CERTAIN_TIERS)


def _find_given(command: TrainCommand) -> dict[str, tuple[str, str]]:
    """Return the values of options, keys and variables, each with its reason. The command counts before its files."""
    environment = {"PWD": str(command.directory), "HOME": expand("~"), **command.environment}
    content = read_command(command.words, environment, command.directory, command.checkpoints, command.mounts)
    given: dict[str, tuple[str, str]] = {}
    for words in content.parts:
        for name, values in parse_options(words).items():
            if values and values[0]:
                reason = f"{name} {values[0]}" if name.startswith("-") else f"{name}={values[0]}"
                given.setdefault(name, (values[0], f"{reason} in the command"))
    given = {name.lstrip("-"): value for name, value in given.items()} | given
    for name, value in command.environment.items():
        given.setdefault(name, (value, f"{name} in [environment]"))
    for path, settings in content.files.items():
        for key, values in settings.items():
            if values:
                given.setdefault(key, (values[0], f"{path.name}: {key}"))
    return given


def _find_named(command: TrainCommand, tiers: Collection[int]) -> list[tuple[str, str]]:
    """Return what the rows of the lowest of the tiers name."""
    given = _find_given(command)
    found: dict[int, list[tuple[str, str]]] = {}
    for row in (row for row in load_rows() if row.tier in tiers):
        for name in (*row.options, *row.keys):
            if name in given and not NO_PATH.fullmatch(given[name][0]):
                value, reason = given[name]
                found.setdefault(row.tier, []).append((_below(row, value, given), reason))
                break
    return found[min(found)] if found else []


def _below(row: SaveRow, value: str, given: Mapping[str, tuple[str, str]]) -> str:
    outer = next((given[name][0] for name in row.below if name in given), "")
    return value if not outer or value.startswith(("/", "~")) else f"{outer.rstrip('/')}/{value}"


def _absolute(text: str, command: TrainCommand) -> Path | None:
    """Return an absolute path outside of a container; None for an address, and for a path with an unknown variable."""
    text = expand(text)
    if not text or "://" in text or "\0" in text or re.search(r"[${}<>*]", text):
        return None
    path = Path(text)
    return find_outside(Path(os.path.normpath(command.directory / path)), command.mounts)


def _directory_of(logged: str) -> str:
    """Return the directory of a logged path: its parent if the path is that of one checkpoint, else the path itself.

    A file in the working directory stands for itself: checkpoints of others may lie beside it.
    """
    path = Path(logged)
    if path.parent == Path():
        return logged
    fits = (*fit_name(path.name, is_directory=True), *fit_name(path.name, is_directory=False))
    is_checkpoint = any(fit.end or not fit.layout.needs_evidence for fit in fits)
    return str(path.parent) if is_checkpoint else logged


def _drop_nested(directories: Iterable[SaveDirectory]) -> list[SaveDirectory]:
    """Drop directories below an earlier one: a scan of the earlier one finds the same checkpoints."""
    chosen: list[SaveDirectory] = []
    for directory in directories:
        if not any(directory.path.is_relative_to(other.path) for other in chosen):
            chosen.append(directory)
    return chosen
