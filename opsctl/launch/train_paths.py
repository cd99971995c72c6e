"""The paths of corpora and weights in [trainer]: a relative path begins at the file that names it.

The copy of TRAIN.toml in a run directory, or in a revision, keeps the paths of its launch: the trainer.json beside the
copy holds them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import MAX_SETTINGS_BYTES, read_json
from opsctl.state.run_dir import RunDir
from opsctl.trainer.config_paths import change_paths, find_path


def load_resolved(file: Path) -> TrainSettings:
    """Load a TRAIN.toml with absolute paths of corpora and weights. Raises ConfigError."""
    train = load_train(file, layout=False)
    return resolve_paths(train, file.absolute().parent, known=find_launched_paths(train, file))


def find_launched_paths(train: TrainSettings, file: Path) -> dict[str, str]:
    """Return the absolute paths of the launch by the paths in `train`, if `file` is a copy in a run directory.

    Empty for a file of the user, and if the settings of the launch cannot be read.
    """
    copy = RunDir(file.parent)  # or a revision, whose files have the same names
    if file != copy.config:
        return {}
    try:
        return match_paths(train, read_json(copy.trainer_config, MAX_SETTINGS_BYTES))
    except (OSError, ValueError):
        return {}


def match_paths(train: TrainSettings, launched: object) -> dict[str, str]:
    """Return the paths of `launched`, the content of trainer.json, by the paths in `train`; empty if they differ."""
    if train.trainer is None or not isinstance(launched, Mapping):
        return {}
    texts, paths = _list_paths(train.trainer), _list_paths(launched)
    if len(texts) != len(paths) or not all(map(_is_resolved, texts, paths)):
        return {}
    return dict(zip(texts, paths, strict=True))


def _is_resolved(text: str, path: str) -> bool:
    """Whether the absolute `path` is `text` against some directory."""
    return path.startswith("/") and (path == text or path.endswith(f"/{Path(text)}"))


def resolve_paths(train: TrainSettings, base: Path, *, known: Mapping[str, str] | None = None) -> TrainSettings:
    """Return `train` with absolute paths of corpora and weights: the `known` paths, otherwise paths from `base`."""
    if train.trainer is None:
        return train
    known = known or {}
    settings = change_paths(train.trainer, lambda text: known.get(text) or find_path(text, base))
    return train.model_copy(update={"trainer": settings})


def _list_paths(settings: Mapping[str, Any]) -> list[str]:
    paths: list[str] = []

    def note(path: str) -> str:
        paths.append(path)
        return path

    try:
        change_paths(settings, note)
    except TypeError:  # a damaged file: a table is none
        return []
    return [path for path in paths if isinstance(path, str)]
