"""Queueing more tasks from another directory than that of the launch."""

from pathlib import Path

import pytest

from opsctl.dash.steering import load_launched
from opsctl.launch.launch_plan import trainer_json
from opsctl.settings.loader import load_train
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_table

TRAIN = read_table(__file__, "train")


def test_relative_paths_are_those_of_the_launch(tmp_path: Path) -> None:
    run, base = RunDir(tmp_path / "t"), tmp_path / "launched-here"
    run.create()
    run.config.write_text(TRAIN)
    launched = trainer_json(load_train(run.config, layout=False), base)
    assert str(base / "data/corpus") in launched
    run.trainer_config.write_text(launched)
    assert trainer_json(load_launched(run), tmp_path / "elsewhere") == launched


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_settings_of_the_launch_change_nothing(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path / "t")
    run.create()
    run.config.write_text(TRAIN)
    run.trainer_config.write_text(text)
    assert load_launched(run) == load_train(run.config, layout=False)
