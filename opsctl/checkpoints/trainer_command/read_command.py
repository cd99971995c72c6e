"""Read a trainer's command with the scripts and configuration files that it names."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from opsctl.checkpoints.trainer_command.shell import END, split_command
from opsctl.checkpoints.trainer_command.value_files import SUFFIXES, Values, is_config, load_values
from opsctl.state.files import read_bounded

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
MAX_SCRIPTS = 8
MAX_SCRIPT_BYTES = 1 << 20
MAX_CONFIG_FILES = 8
MAX_NAMES = 8
"""Names of files that one option may have."""

_OPTION = re.compile(r"(--[^\s=-][^\s=]*|-[A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_KEY_VALUE = re.compile(r"\+{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContent:
    """What a command says. Variables are replaced, as far as they are known."""

    words: Sequence[str]
    """Of the command itself; `shell.END` ends a command of a script."""
    scripts: Mapping[str, str]
    """The texts of the shell scripts, by the words that name them; those that a script names follow."""
    script_words: Sequence[Sequence[str]]
    files: Mapping[Path, Values]
    """The values of the configuration files."""
    unread: Mapping[Path, str]
    """The configuration files that cannot be read, and why."""
    variables: Mapping[str, str]
    """Of the environment, and those that the scripts assign."""

    @property
    def parts(self) -> list[Sequence[str]]:
        """The words of the command, then those of each script."""
        return [self.words, *self.script_words]


def read_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path | None = None,
    checkpoints: Path | None = None,
    mounts: Mapping[Path, Path] | None = None,
) -> CommandContent:
    """Return what a command, its scripts and its configuration files say. Never raises.

    `directory` is where the trainer starts: without it, no file is read. `checkpoints` is what `{{ checkpoint_dir }}`
    stands for, in the run directory. `mounts` are the paths outside of a container, by those inside.
    """
    variables = dict(environment)
    words = split_command(command, variables, checkpoints)
    mounts = mounts or {}
    scripts: dict[str, str] = {}
    script_words: list[list[str]] = []
    waiting = [words]
    while waiting and directory is not None:
        for name, text in read_scripts(waiting.pop(0), directory, mounts=mounts).items():
            if name not in scripts and len(scripts) < MAX_SCRIPTS:
                scripts[name] = text
                script_words.append(split_command([text + "\n"], variables, checkpoints))
                waiting.append(script_words[-1])
    named = [*words, *chain.from_iterable(script_words)]
    paths = list_config_files(named, directory, mounts) if directory is not None else []
    files: dict[Path, Values] = {}
    unread: dict[Path, str] = {}
    for path in paths:
        try:
            files[path] = load_values(path)
        except (OSError, ValueError) as error:
            unread[path] = str(error)
    return CommandContent(
        words=words, scripts=scripts, script_words=script_words, files=files, unread=unread, variables=variables
    )


def list_options(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return every option and every `key=value` word with its values, by its name as written.

    `--tp 4`, `--tp=4`, `-tp 4`; hydra's `trainer.devices=8`, `+a=b`, and variables, without their signs.
    """
    options: list[tuple[str, list[str]]] = []
    values: list[str] = []
    for word in words:
        if word == END:
            values = []
        elif option := _OPTION.fullmatch(word):
            values = [] if option[2] is None else [option[2]]
            options.append((option[1], values))
        else:
            values.append(word)
            if pair := _KEY_VALUE.fullmatch(word):
                options.append((pair[1], [pair[2]]))
    return options


def parse_options(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options by their names; the last one of a name counts."""
    return {name: tuple(values) for name, values in list_options(words)}


def read_scripts(
    words: Sequence[str],
    directory: Path,
    suffixes: tuple[str, ...] = SCRIPT_SUFFIXES,
    *,
    mounts: Mapping[Path, Path] | None = None,
) -> dict[str, str]:
    """Return the texts of the scripts that the words name, by these words; without those that cannot be read."""
    texts: dict[str, str] = {}
    for word in dict.fromkeys(word for word in words if word.endswith(suffixes)):
        with contextlib.suppress(OSError, ValueError):
            if len(texts) < MAX_SCRIPTS:
                # The code of a trainer may be a link, and lies where its owner wants.
                path = find_outside(directory / expand(word), mounts or {})
                text = read_bounded(path, MAX_SCRIPT_BYTES, follow=True)
                texts[word] = text.decode(errors="replace")
    return texts


def list_config_files(words: Sequence[str], directory: Path, mounts: Mapping[Path, Path]) -> list[Path]:
    """Return the configuration files that the words name, as far as they exist.

    Also those named by a directory and names without an ending: `-d DIR NAME NAME` is GPT-NeoX's, `--config-path DIR
    --config-name NAME` is hydra's.
    """
    options = parse_options(words)
    named = [expand(word.rpartition("=")[2]) for word in words]
    for place, name in zip(options.get("--config-path", ()), options.get("--config-name", ()), strict=False):
        named += [f"{place}/{name}", f"{place}/{name}.yaml"]
    for option in ("-d", "--conf_dir"):
        place, *names = options.get(option) or [""]
        for name in names[:MAX_NAMES]:
            named += [f"{place}/{name}", f"{place}/{name}.yml"]
    paths = dict.fromkeys(find_outside(directory / name, mounts) for name in named if name.endswith(SUFFIXES))
    return [path for path in paths if is_config(path)][:MAX_CONFIG_FILES]


def find_outside(path: Path, mounts: Mapping[Path, Path]) -> Path:
    """Return where a path of a container lies outside, by the innermost of its mounts; the same path without one."""
    inside = next((parent for parent in (path, *path.parents) if parent in mounts), None)
    return mounts[inside] / path.relative_to(inside) if inside else path


def expand(path: str) -> str:
    """Return a path with ~ replaced, without quotes."""
    return os.path.expanduser(path.strip().strip("\"'"))  # noqa: PTH111 (Path.expanduser raises for an unknown user)
