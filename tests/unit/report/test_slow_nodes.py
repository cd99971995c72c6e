"""`opsctl report` shows the step times of a train's nodes against their partners."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from opsctl.nodes.slow_nodes import StepTimeRatio
from opsctl.trainer.contract import TrainerStop
from tests.support.finalized_trains import QueuedTrain, make_node_care, make_train


def note(train: QueuedTrain, attempt: str, ratios: dict[str, float], partners: str) -> None:
    entries = {
        node: StepTimeRatio(at=time.time(), ratio=ratio, local_rank=0, nodes=4, partners=partners)
        for node, ratio in ratios.items()
    }
    make_node_care(train).history.note_step_times(attempt, entries)


def report(train: QueuedTrain, *words: str) -> str:
    root = train.run.path.parent
    env = {**os.environ, "OPSCTL_ROOT": str(root), "XDG_CONFIG_HOME": str(root)}
    argv = [sys.executable, "-m", "opsctl", "report", "gpt", *words]
    return subprocess.run(argv, check=True, env=env, timeout=250, capture_output=True, text=True).stdout


def test_slow_node_is_in_the_report(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.DEADLINE)
    for number, partners in enumerate("xyz"):
        note(train, f"gpt/12_{number}.0", {"node001": 1.0, "node002": 1.2}, partners)
    note(train, "other/13_1.0", {"node003": 1.0}, "x")
    speeds = json.loads(report(train, "--json"))["node_speeds"]
    assert {node: (speed["ratio"], speed["is_slow"]) for node, speed in speeds.items()} == {
        "node001": (1.0, False),
        "node002": (1.2, True),
    }
    text = "node002 1.20x slow (local rank 0), 3 attempts (2 nodes with step times)"
    assert f"- slow nodes: {text}" in report(train, "--markdown")


def test_train_without_step_times_reports_no_slow_nodes(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    train.stop_trainer(train.start_attempt(), TrainerStop.DEADLINE)
    assert "slow nodes" not in report(train, "--markdown")
