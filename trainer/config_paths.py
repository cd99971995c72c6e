"""The paths of corpora and weights in the settings of the trainer."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opsctl.trainer.config_tables import DataConfig


def change_paths(settings: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the settings of the trainer with every path of a corpus or of weights changed."""
    changed = {**settings, "data": _change({"prefix": DataConfig().prefix, **settings.get("data", {})}, change)}
    if "evaluation" in settings:
        changed["evaluation"] = _change(settings["evaluation"], change)
    if settings.get("weights") is not None:
        changed["weights"] = change(settings["weights"])
    return changed


def find_path(text: str, base: Path) -> str:
    """Return the absolute path of a corpus or of weights: relative to `base`, the directory of TRAIN.toml.

    If the path exists only relative to the working directory, return that path.
    """
    beside, here = base / text, Path.cwd() / text
    return str(here if is_there(here) and not is_there(beside) else beside)


def exists(path: Path) -> bool:
    """Return whether a file or directory is known to exist: not below a directory that this user cannot read."""
    try:
        return path.exists()
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Return whether weights or a corpus exist. A corpus is named without its suffix."""
    return exists(path) or any(exists(path.with_name(f"{path.name}{suffix}")) for suffix in (".idx", ".bin"))


def _change(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with every `prefix` in it changed."""
    if isinstance(value, Mapping):
        return {key: change(part) if key == "prefix" else _change(part, change) for key, part in value.items()}
    return [_change(part, change) for part in value] if isinstance(value, list | tuple) else value
