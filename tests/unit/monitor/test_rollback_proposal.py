"""An alert about the loss names the checkpoint and the command of the rollback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.model import Finding, Level
from opsctl.monitor.rollback_proposal import find_trouble_step, propose_rollback
from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchedTrain
from tests.support.saved_checkpoints import save

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
