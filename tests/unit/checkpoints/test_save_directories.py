"""Where a train saves. `pytest tests/unit/checkpoints/test_save_directories.py`"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from opsctl.checkpoints.save_directories import TrainCommand, find_in_command, find_save_directories
from tests.support.cases import read_cases

CORPUS = Path("tests/corpus/commands")
RECORDS: list[dict[str, Any]] = [
    json.loads(line) for path in sorted(CORPUS.glob("*.jsonl")) for line in path.read_text().splitlines()
]
TEST_HALF_FLOOR = 0.9
"""Share of the directories of the test half that are found, all or nothing for a command."""


def command(*words: str, directory: Path = Path("/job"), **environment: str) -> TrainCommand:
    return TrainCommand(
        words=words, environment=environment, directory=directory, checkpoints=Path("/runs/toy/checkpoints")
    )


def find(*words: str, **environment: str) -> list[str]:
    return [text for text, _ in find_in_command(command(*words, **environment))]


def is_right(record: dict[str, Any]) -> bool:
    expected = [record["facts"]["save"]] if "save" in record["facts"] else []
    return find("bash", "-c", record["command"]) == expected


def measure(half: str) -> tuple[int, int]:
    """Return the numbers of right commands and of all commands of a half."""
    results = [is_right(record) for record in RECORDS if record["half"] == half]
    return sum(results), len(results)


def test_tuning_half_is_read() -> None:
    wrong = [record["command"] for record in RECORDS if record["half"] == "tuning" and not is_right(record)]
    assert wrong == []


def test_test_half_is_read() -> None:
    right, count = measure("test")
    assert right >= TEST_HALF_FLOOR * count, f"{right} of {count}"


@pytest.mark.parametrize(*read_cases(__file__, "directory_of_a_command"))
def test_directory_of_a_command(words: list[str], directories: list[str]) -> None:
    assert find(*words, ROOT="/big") == directories


@pytest.mark.parametrize(*read_cases(__file__, "uncertain_option_counts_if_no_other_is_given"))
def test_uncertain_option_counts_if_no_other_is_given(words: list[str], directories: list[str]) -> None:
    environment = {"OUTPUT_DIR": "/set"} if "--root" in words else {}
    found = find_save_directories(command(*words, **environment))
    assert [str(directory.path) for directory in found[1:]] == directories


@pytest.mark.parametrize(*read_cases(__file__, "directory_of_a_configuration_file"))
def test_directory_of_a_configuration_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = find_save_directories(command("train.py", "--config", name, directory=tmp_path))
    assert [directory.path for directory in found] == [Path("/runs/toy/checkpoints"), tmp_path / "ckpt"]
    assert found[1].reason.startswith(name)


def test_directories_have_reasons() -> None:
    found = find_save_directories(
        command("train.py", "--save", "out"), configured=("/data/mine",), logged=("/logged/here/step5",)
    )
    assert [(str(directory.path), directory.reason) for directory in found] == [
        ("/data/mine", "TRAIN.toml, [progress] checkpoint_directories"),
        ("/runs/toy/checkpoints", "the run directory"),
        ("/job/out", "--save out in the command"),
        ("/logged/here", "a save in the log"),
    ]


@pytest.mark.parametrize(*read_cases(__file__, "logged_path_names_its_directory"))
def test_logged_path_names_its_directory(logged: str, directory: str) -> None:
    assert str(find_save_directories(command("train.py"), logged=[logged])[-1].path) == directory


def test_unknown_and_wide_paths_are_left_out() -> None:
    for text in ("$NOWHERE/ckpt", "s3://bucket/x", "/", "/home", "{run_name}/checkpoints"):
        found = find_save_directories(command("train.py", "--save", text))
        assert [directory.reason for directory in found] == ["the run directory"]


def test_shell_script_of_the_command_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "#!/bin/bash\n# don't change\nNAME=llama\nexport OUT=$PWD/runs/$NAME\npython train.py \\\n  --save $OUT\n"
    )
    named = command("bash", "train.sh", directory=tmp_path)
    assert [text for text, _ in find_in_command(named)] == [f"{tmp_path}/runs/llama"]


def make_place(tmp_path: Path, name: str) -> Path:
    """Make the directories of a train that was launched before the directory `name` changed."""
    (tmp_path / "tiny" / "checkpoints").mkdir(parents=True)
    os.utime(tmp_path / "tiny" / "checkpoints", (1, 1))
    (tmp_path / name).mkdir()
    return tmp_path


def list_places(place: Path, *words: str) -> list[str]:
    checkpoints = place / "tiny" / "checkpoints"
    named = TrainCommand(words=words, environment={}, directory=place, checkpoints=checkpoints)
    return [directory.path.name for directory in find_save_directories(named) if directory.path != checkpoints]


@pytest.mark.parametrize(("name", "found"), [("ckpt", ["ckpt"]), ("saved_models", ["saved_models"]), ("data", [])])
def test_usual_directory_counts_if_none_is_named(tmp_path: Path, name: str, found: list[str]) -> None:
    assert list_places(make_place(tmp_path, name), "python", "train.py") == found
    assert list_places(tmp_path, "python", "train.py", "--save", "own") == ["own"]


def test_usual_directory_from_before_the_launch_does_not_count(tmp_path: Path) -> None:
    os.utime(make_place(tmp_path, "models") / "models", (0, 0))
    assert list_places(tmp_path, "python", "train.py") == []


def test_directory_of_all_trains_does_not_count(tmp_path: Path) -> None:
    checkpoints = tmp_path / "runs" / "tiny" / "checkpoints"
    checkpoints.mkdir(parents=True)
    os.utime(checkpoints, (1, 1))
    (tmp_path / "linked").symlink_to(tmp_path)
    for place in (tmp_path, tmp_path / "linked"):
        named = TrainCommand(words=("train.py",), environment={}, directory=place, checkpoints=checkpoints)
        assert [directory.path for directory in find_save_directories(named)] == [checkpoints]
