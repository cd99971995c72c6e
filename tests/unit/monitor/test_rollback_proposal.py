"""An alert about the loss names the checkpoint and the command of the rollback."""

import json
import math
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.findings import Finding, Severity
from opsctl.monitor.run_watchdogs import propose_rollback
from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.watchdogs import loss_curve, step_health
from opsctl.watchdogs.context import WatchedTrain
from opsctl.watchdogs.loss import Loss, LossObservation
from opsctl.watchdogs.loss_curve import LossState
from opsctl.watchdogs.step_health import StepHealth
from tests.support.findings import make_finding
from tests.support.saved_checkpoints import save

AT = datetime(2026, 1, 1, tzinfo=UTC)
_HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
SAFETENSORS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(8)
DIVERGES = make_finding(
    key="loss/t",
    severity=Severity.CRITICAL,
    summary="t: loss 9 at step 95, spiked from 2 to 9 at step 90",
    since_step=73,
    wants_rollback=True,
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
    assert propose_rollback(DIVERGES, train).rollback == f"roll back to step 70: opsctl rollback t --to 70 ({path})"


def test_finding_without_an_earlier_checkpoint_says_so(train: WatchedTrain) -> None:
    early = replace(DIVERGES, since_step=40)
    assert propose_rollback(early, train).rollback == "no rollback: no complete checkpoint before step 40 is known"


@pytest.mark.parametrize("change", [{"severity": Severity.OK}, {"wants_rollback": False}, {"since_step": None}])
def test_other_findings_stay_as_they_are(change, train: WatchedTrain) -> None:
    finding = replace(DIVERGES, **change)
    assert propose_rollback(finding, train) is finding


def _line(step: int, **fields: Any) -> Iteration:
    usual: dict[str, Any] = {"step": step, "loss": 2.0, "grad_norm": 1.0, "loss_scale": 65536.0, "skipped": 0}
    return Iteration(**{**usual, **fields})


@pytest.mark.parametrize(
    "trouble",
    [{"grad_norm": math.nan}, {"loss_scale": 1.0}, {"skipped": 1}, {"loss": math.nan}, {"loss": 9.0}],
    ids=["gradient", "scale", "skipped", "loss", "spike"],
)
def test_checkpoint_inside_the_trouble_is_not_proposed(trouble: dict[str, Any], train: WatchedTrain) -> None:
    for step in (1000, 1100, 1200):
        save(train.run.checkpoints, step)
    lines = [*map(_line, range(900, 1001)), *(_line(step, **trouble) for step in range(1001, 1191))]
    observation = LossObservation(
        train="t", curve=loss_curve.advance(LossState(), lines), steps=step_health.advance(StepHealth(), lines)
    )
    worst = max(Loss().judge(observation, AT), key=lambda finding: finding.wants_rollback)
    assert worst.since_step == 1001
    proposed = propose_rollback(worst, train).roll_back
    assert proposed and proposed.facts["step"] == 1000


HELD = make_finding(
    key="failures/t/12_3.0",
    severity=Severity.CRITICAL,
    summary="t is held: 12_3.0 crashed: the body exited with 1",
    evidence=("FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-500/trainer_state.json'",),
    names=("checkpoint-500", "trainer_state.json"),
)
NO_WEIGHTS = replace(
    HELD,
    evidence=(
        "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /out/checkpoint-500.",
    ),
    wants_rollback=True,
)
UNREADABLE = replace(HELD, evidence=("SafetensorError: incomplete",), names=(), wants_rollback=True)


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
    assert propose_rollback(finding, foreign).rollback == f"roll back to step 400: opsctl rollback t --to 400 ({good})"


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


def test_checkpoint_of_another_train_that_the_log_names_is_not_proposed(train: WatchedTrain) -> None:
    other = RunDir(train.run.path.with_name("u"))
    other.create()
    other.config.touch()
    save(other.checkpoints, 72)
    train.run.main_log.write_text(f"  successfully saved checkpoint from iteration 72 to {other.checkpoints}\n")
    proposed = propose_rollback(DIVERGES, train).roll_back
    assert proposed and proposed.facts["step"] == 70
