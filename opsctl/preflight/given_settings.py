"""The settings that a command gives its trainer: flags, `key=value` words, shell scripts and configuration files.

Names are compared in one spelling: `--micro_batch_size`, `micro-batch-size` and `micro_batch_size:` are the same name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from opsctl.checkpoints.command_words import MAX_CONFIG_BYTES, config_files, split_words
from opsctl.preflight.command_flags import COMMENT, parse_flags, words
from opsctl.settings.loader import TrainSettings
from opsctl.state.files import read_bounded

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
MAX_SCRIPT_BYTES = 1 << 18
MAX_FILE_VALUES = 4000
_KEY_VALUE = re.compile(r"\+{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
CHECKPOINTS = Path("{{checkpoint_dir}}")
DEEPSPEED_FILE = ("deepspeed-config", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSettings:
    """What the user gives the trainer. A switch without a value has no values."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name; the command's own flags come before scripts, and scripts before files."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Each name as the user wrote it, such as `--micro_batch_size` or `train.toml: training.steps`."""
    own: frozenset[str] = frozenset()
    """The names of the command's own flags."""
    deepspeed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The settings in DeepSpeed's file."""
    model: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The settings in config.json of the model that the command names."""


def collect_settings(train: TrainSettings, directory: Path | None) -> GivenSettings:
    """Return what the command gives. Without `directory`, where the trainer starts, no file is read. Never raises."""
    command = split_words(
        words(_PLACEHOLDER.sub(r"{{\1}}", word) for word in train.command), train.environment, CHECKPOINTS
    )
    own = parse_flags(command)
    values: dict[str, tuple[str, ...]] = {}
    spellings: dict[str, str] = {}
    _add(values, spellings, own, "--")
    _add(values, spellings, _read_key_values(command), "")
    named = list(command)
    if directory is not None:
        for script_words in _read_scripts(command, train, directory):
            _add(values, spellings, parse_flags(script_words), "--")
            _add(values, spellings, _read_key_values(script_words), "")
            named += script_words
    files = {path: read_settings(path) for path in _list_config_files(named, directory)} if directory else {}
    deepspeed_names = {Path(values[name][0]).name for name in DEEPSPEED_FILE if values.get(name)}
    deepspeed: Mapping[str, tuple[str, ...]] = {}
    for path, settings in files.items():
        if path.name in deepspeed_names:
            deepspeed = settings
        else:
            _add(values, spellings, settings, f"{path.name}: ")
    return GivenSettings(
        values=values,
        spellings=spellings,
        own=frozenset(own),
        deepspeed=deepspeed,
        model=_read_model(values, directory),
    )


def _list_config_files(words_: Sequence[str], directory: Path) -> list[Path]:
    """Return the configuration files that the words name, also by a directory and names without an ending.

    `-d DIR NAME NAME` is GPT-NeoX's, `--config-path DIR --config-name NAME` is hydra's.
    """
    named = list(words_)
    flags = parse_flags(words_)
    for path, name in zip(flags.get("config-path", ()), flags.get("config-name", ()), strict=False):
        named += [f"{path}/{name}", f"{path}/{name}.yaml"]
    for flag in ("-d", "--conf_dir"):
        if flag in words_:
            place, *names = words_[words_.index(flag) + 1 :] or [""]
            for name in names[:8]:
                named += [f"{place}/{name}", f"{place}/{name}.yml"]
    return config_files(named, directory)


def _add(
    values: dict[str, tuple[str, ...]],
    spellings: dict[str, str],
    settings: Mapping[str, tuple[str, ...]],
    prefix: str,
) -> None:
    for key, texts in settings.items():
        name = spell(key)
        if name not in values:
            values[name] = texts
            spellings[name] = prefix + (name if prefix == "--" else key)


def spell(name: str) -> str:
    """Return the one spelling of a name."""
    return name.replace("_", "-").lower()


def _read_key_values(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the `key=value` words of hydra. A name in capitals is a variable of the shell."""
    matches = (_KEY_VALUE.fullmatch(word) for word in command)
    return {match[1]: (match[2],) for match in matches if match and not match[1].isupper()}


def _read_scripts(command: Sequence[str], train: TrainSettings, directory: Path) -> Iterator[list[str]]:
    for word in command:
        if word.endswith(SCRIPTS) and "\0" not in word:
            try:
                text = read_bounded(directory / word, MAX_SCRIPT_BYTES, follow=True).decode(errors="replace")
            except (OSError, ValueError):
                continue
            yield split_words([COMMENT.sub("", text)], train.environment, CHECKPOINTS)


def _read_model(values: Mapping[str, tuple[str, ...]], directory: Path | None) -> Mapping[str, tuple[str, ...]]:
    texts = values.get("model-name-or-path", ())[:1]
    if directory is None or not texts or "\0" in texts[0]:
        return {}
    return {spell(key): value for key, value in read_settings(directory / texts[0] / "config.json").items()}


def read_settings(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the settings of a TOML, YAML or JSON file, tables joined by dots; empty if the file cannot be read."""
    try:
        text = read_bounded(path, MAX_CONFIG_BYTES, follow=True).decode(errors="replace")
        if path.suffix == ".toml":
            content: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            content = json.loads(text)
        else:
            content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    flat: dict[str, tuple[str, ...]] = {}
    _flatten(content, "", 16, flat)
    return flat


def _flatten(value: Any, prefix: str, depth: int, flat: dict[str, tuple[str, ...]]) -> None:
    if len(flat) >= MAX_FILE_VALUES:
        return
    if isinstance(value, dict) and depth:
        for key, item in value.items():
            _flatten(item, f"{prefix}.{key}" if prefix else str(key), depth - 1, flat)
    elif isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        flat[prefix] = tuple(map(_to_text, value))
    elif isinstance(value, str | int | float) or value is None:
        flat[prefix] = (_to_text(value),)


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
