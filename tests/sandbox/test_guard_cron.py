"""What a cron tick and the verbs' catching up do, under a real Slurm and through the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import GuardedTrain

from opsctl import switches
from opsctl.journal import Kind
from opsctl.sandbox.cluster import Sandbox
from opsctl.switches import Switch, Verb

FINISHED = """echo '{"reason": "finished", "step": 40, "at": 1.0}' >"$TRAIN_STOP_REASON" """


@pytest.fixture
def train(tmp_path: Path, slurm: Sandbox) -> Iterator[GuardedTrain]:
    made = GuardedTrain(tmp_path, slurm)
    yield made
    made.clear()


def tick(train: GuardedTrain, *, conf: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **train.sandbox.env(), **({"SLURM_CONF": conf} if conf else {})}
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(train.site), "cron", "tick", "--json"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_a_tick_settles_what_ran_without_a_guard(train: GuardedTrain) -> None:
    array = train.submit(FINISHED, python="/nowhere/python")
    train.wait()
    assert not train.life().end.exists()
    done = tick(train)
    assert json.loads(done.stdout) == [
        {
            "train": "gpt",
            "done": [f"settled {array}_1.0: finished, cancel-queued: the trainer left at step 40 (finished)"],
            "error": "",
        }
    ]
    assert json.loads(tick(train).stdout) == []


def test_a_tick_carries_out_a_release_that_a_team_mate_asked_for(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.PAUSE, why="")
    train.submit("exit 0", tasks=2)
    train.wait()
    assert [job.is_held for job in train.waiting] == [True]
    switches.request(train.run, Verb.RELEASE)
    assert tick(train).returncode == 0
    train.wait()
    assert train.waiting == []
    assert [event.data["by"] for event in train.events(Kind.REQUEST_DONE)] == [switches.owner(train.run.path.stat())]


def test_a_tick_without_slurm_says_try_again_and_changes_nothing(train: GuardedTrain, tmp_path: Path) -> None:
    life = train.run.life("1_1.0")
    life.path.mkdir()
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=1\n"
    )
    done = tick(train, conf=str(conf))
    assert done.returncode == 75, done.stderr
    assert not life.end.exists()
