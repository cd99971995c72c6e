"""The variables that the guard gives to the body after a rollback."""

from pathlib import Path

import pytest

from opsctl.guard.attempt_record import make_rollback_env
from opsctl.state.run_dir import RunDir
from tests.support.saved_checkpoints import save

TABLE = """
[rollback]
step_argument = "--load {name}"
lr_scale_argument = "--lr={scale}"
step = 20
checkpoint = "{checkpoint}"
lr_scale = 0.5
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "t")
    run.create()
    save(run.checkpoints, 20)
    run.config.write_text(TABLE.replace("{checkpoint}", str(run.checkpoints / "step-0000020")))
    return run


def test_words_name_the_checkpoint_while_it_is_the_newest(run: RunDir) -> None:
    env = make_rollback_env(run)
    assert env["TRAIN_ROLLBACK_ARGUMENTS"] == "--lr=0.5 --load step-0000020"
    assert env["TRAIN_ROLLBACK_STEP"] == "20"


def test_newer_checkpoint_ends_the_words_of_the_step(run: RunDir) -> None:
    save(run.checkpoints, 30)
    env = make_rollback_env(run)
    assert (env["TRAIN_ROLLBACK_ARGUMENTS"], env["TRAIN_ROLLBACK_STEP"]) == ("--lr=0.5", "")


@pytest.mark.parametrize("text", ["", "[rollback]\nstep = 'x'\n", "no toml"])
def test_no_rollback_or_a_broken_file_gives_no_words(run: RunDir, text: str) -> None:
    run.config.write_text(text)
    assert set(make_rollback_env(run).values()) == {""}
