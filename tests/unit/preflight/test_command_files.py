"""Files without which a command cannot start: certain, or only suspected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.preflight.command_files import find_misplaced_paths, find_started_words
from opsctl.settings.loader import TrainSettings
from tests.support.cases import read_cases


def find(tmp_path: Path, command: list[str], setup: dict[str, object], extra: tuple[str, ...] = ()) -> dict[str, bool]:
    """Return the missing files of a command, and whether the command certainly needs them."""
    run, base = tmp_path / "run", tmp_path / "base"
    for directory in (run, base):
        directory.mkdir(exist_ok=True)
    (run / "train.py").touch()
    (base / "near.py").touch()
    fields = {"name": "t", "command": command, "setup": setup, "slurm": {"nodes": 1, "time_limit": "5"}}
    train = TrainSettings.model_validate_json(json.dumps(fields))
    return {path.path: path.is_needed for path in find_misplaced_paths(train, run, base, extra)}


@pytest.mark.parametrize(*read_cases(__file__, "file_that_certainly_misses_is_needed"))
def test_file_that_certainly_misses_is_needed(
    tmp_path: Path, command: list[str], setup: dict[str, object], missing: dict[str, bool]
) -> None:
    if "torchrun" in command[0]:
        setup = {**setup, "modules": ["torch"]}
    assert find(tmp_path, command, setup) == missing


def test_container_option_hides_files(tmp_path: Path) -> None:
    assert find(tmp_path, ["python3", "gone.py"], {}, ("--container-image=a.sqsh",)) == {}


def test_started_words_of_an_empty_command() -> None:
    assert find_started_words([]) == set()
