"""`opsctl checkpoint list` for a foreign trainer. `pytest tests/unit/cli/test_foreign_checkpoints.py`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.cli import cli
from opsctl.state.run_dir import RunDir


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a train named `toy` saves to."""
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "trains" / "toy")
    run.create()
    saved = tmp_path / "saved"
    command = ["python", "train.py", "--output_dir", str(saved)]
    run.config.write_text(f'name = "toy"\ncommand = {json.dumps(command)}\n[slurm]\nnodes = 1\ntime_limit = "9"\n')
    return saved


def checkpoint_list(*words: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", "list", "toy", *words], standalone_mode=False, prog_name="opsctl")


def make(saved: Path, step: int, *names: str) -> None:
    (saved / f"checkpoint-{step}").mkdir(parents=True)
    for name in names:
        (saved / f"checkpoint-{step}" / name).write_text("{}")


def test_states_and_directories_are_listed(saved: Path) -> None:
    make(saved, 10, "trainer_state.json", "model.safetensors")
    make(saved, 20, "training_args.bin")
    result = checkpoint_list()
    assert result.return_value == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines[1:3]] == [["10", "complete"], ["20", "partial"]]
    assert f"searched: {saved} (--output_dir {saved} in the command)" in result.stdout


def test_json_has_paths_and_reasons(saved: Path) -> None:
    make(saved, 20, "training_args.bin")
    [row] = json.loads(checkpoint_list("--json").stdout)
    assert (row["step"], row["completeness"], row["reason"]) == (
        20,
        "partial",
        "trainer_state.json is missing or empty",
    )
    assert row["path"] == str(saved / "checkpoint-20")


def test_directories_without_checkpoints_are_named(saved: Path) -> None:
    assert "no checkpoints" in checkpoint_list().stdout
    assert f"searched: {saved}" in checkpoint_list().stdout
    assert json.loads(checkpoint_list("--json").stdout) == []


def test_checkpoints_of_which_none_is_complete_are_counted(saved: Path) -> None:
    for step in (10, 20):
        make(saved, step, "training_args.bin")
    words = " ".join(checkpoint_list().stdout.split())
    found = "2 found, none recognised as complete: checkpoint-20: trainer_state.json is missing or empty"
    assert found in words
    make(saved, 30, "trainer_state.json")
    assert "none recognised" not in checkpoint_list().stdout
