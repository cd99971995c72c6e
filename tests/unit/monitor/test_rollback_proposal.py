"""An alert about the loss names the checkpoint and the command of the rollback."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.base.model import Finding, Level
from opsctl.monitor.rollback_proposal import find_trouble_step, propose_rollback
from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchedTrain
from tests.support.saved_checkpoints import save

_HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
SAFETENSORS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(8)
DIVERGES = Finding(
    key="loss/t",
    level=Level.CRITICAL,
    summary="t: loss 9 at step 95, spiked from 2 to 9 at step 90",
    evidence=("step 71: 2.0", "step 72: 2.1"),
    remedy="roll back to an earlier checkpoint",
)


@pytest.fixture
def train(tmp_path) -> WatchedTrain:
    run = RunDir(tmp_path / "t")
    run.create()
    for step in (50, 70, 80):
        save(run.checkpoints, step)
    config = parse(TrainSettings, {"name": "t", "command": ["true"], "slurm": {"nodes": 1, "time_limit": "5"}}, "test")
    return WatchedTrain(run=run, config=config, snapshot=None)


def test_command_names_the_newest_checkpoint_before(train: WatchedTrain) -> None:
    path = train.run.checkpoints / "step-0000070"
    assert propose_rollback(DIVERGES, train).rollback == f"step 70: opsctl rollback t --to 70 ({path})"


def test_finding_without_an_earlier_checkpoint_says_so(train: WatchedTrain) -> None:
    early = replace(DIVERGES, summary="t: loss 9 at step 40", evidence=())
    assert propose_rollback(early, train).rollback == "no complete checkpoint before step 40 is known"


@pytest.mark.parametrize("change", [{"level": Level.OK}, {"remedy": "wait"}, {"summary": "t: no loss", "evidence": ()}])
def test_other_findings_stay_as_they_are(change, train: WatchedTrain) -> None:
    finding = replace(DIVERGES, **change)
    assert propose_rollback(finding, train) is finding


def test_first_named_step_begins_the_trouble() -> None:
    assert find_trouble_step(DIVERGES) == 71


HELD = Finding(
    key="failures/t/12_3.0",
    level=Level.CRITICAL,
    summary="t is held: 12_3.0 crashed: the body exited with 1",
    evidence=("FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-500/trainer_state.json'",),
    remedy="opsctl why t",
)
NO_WEIGHTS = replace(
    HELD,
    evidence=(
        "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /out/checkpoint-500.",
    ),
    remedy="correct its path, or roll back to an earlier one",
)
UNREADABLE = replace(HELD, evidence=("SafetensorError: incomplete",), remedy="roll back to the previous checkpoint")


def _save_foreign(train: WatchedTrain, name: str, *files: str) -> Path:
    directory = train.run.path / "out" / name
    directory.mkdir(parents=True)
    for file in files:
        (directory / file).write_bytes(SAFETENSORS if file.endswith(".safetensors") else b"{}")
    return directory


@pytest.fixture
def foreign(train: WatchedTrain) -> WatchedTrain:
    directory = str(train.run.path / "out")
    config = train.config.model_copy(update={"command": ["python", "train.py", "--output_dir", directory]})
    return replace(train, config=config)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("no file", HELD),
        ("no file", UNREADABLE),
        ("no weights", NO_WEIGHTS),
        ("cut off", HELD),
        ("cut off", UNREADABLE),
    ],
)
def test_damaged_checkpoint_of_transformers_is_left(foreign: WatchedTrain, damage: str, finding: Finding) -> None:
    good = _save_foreign(foreign, "checkpoint-400", "trainer_state.json", "model.safetensors")
    bad = _save_foreign(foreign, "checkpoint-500")
    if damage != "no file":
        (bad / "trainer_state.json").write_text("{}")
    if damage == "cut off":
        (bad / "model.safetensors").write_bytes(SAFETENSORS[:-4])
    assert propose_rollback(finding, foreign).rollback == f"step 400: opsctl rollback t --to 400 ({good})"


def test_unreadable_checkpoint_without_visible_damage_is_left(foreign: WatchedTrain) -> None:
    for step in (400, 500):
        _save_foreign(foreign, f"checkpoint-{step}", "trainer_state.json", "model.safetensors")
    assert "--to 400 " in propose_rollback(UNREADABLE, foreign).rollback


def test_cut_off_dcp_checkpoint_is_left(foreign: WatchedTrain) -> None:
    for step in (400, 500):
        directory = _save_foreign(foreign, f"step-{step}", ".metadata")
        (directory / "__0_0.distcp").write_bytes(b"PK\x03\x04" + b"x" * 5000 + b"PK\x05\x06" * (step == 400))
        (directory / "__1_0.distcp").write_bytes(b"")
    assert "--to 400 " in propose_rollback(UNREADABLE, foreign).rollback


def test_checkpoint_of_an_unknown_layout_is_proposed_with_a_doubt(foreign: WatchedTrain) -> None:
    shutil.rmtree(foreign.run.checkpoints)
    for step in (400, 500):
        _save_foreign(foreign, f"my_step_{step}", "state.dat")
    assert "nothing shows whether it is complete" in propose_rollback(UNREADABLE, foreign).rollback


def test_failure_that_names_a_good_checkpoint_proposes_nothing(foreign: WatchedTrain) -> None:
    for step in (400, 500):
        _save_foreign(foreign, f"checkpoint-{step}", "trainer_state.json", "model.safetensors")
    assert propose_rollback(HELD, foreign) is HELD
