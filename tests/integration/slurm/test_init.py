"""`opsctl init` on a real Slurm: what it writes fits the cluster and runs as it is."""

from pathlib import Path

import pytest

from opsctl.cli.init import TRAINERS
from opsctl.settings.loader import load_train
from tests.support.trains import Trains, until

TRAINER = """import os
for step in range(1, 4):
    print(f"iteration {step}/3 | rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, {os.environ['SIZE']}")
"""


def test_train_of_a_command_runs_as_it_is(trains: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    home = trains.place / "my code"
    home.mkdir()
    (home / "train.py").write_text(TRAINER)
    monkeypatch.chdir(home)
    trains.opsctl("init", "--command", "SIZE=7b torchrun --nproc-per-node 8 --nnodes 2 train.py")
    train = load_train(Path("train.toml"))
    assert (train.name, train.slurm.partition, train.slurm.nodes) == ("my-code", "main", 2)
    assert (train.slurm.gpus_per_node, train.slurm.processes_per_node) == (2, 2)
    trains.opsctl("launch", "train.toml")
    until(lambda: "finished" in trains.opsctl("status", "my-code"))
    assert "rank 3 of 4, 7b" in trains.opsctl("logs", "my-code", "--all")


def test_every_recipe_and_the_example_fit_the_cluster(trains: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trains.place)
    for name in TRAINERS[1:]:
        trains.opsctl("init", "--trainer", name, "--dir", name)
        slurm = load_train(Path(name, "train.toml")).slurm
        assert (slurm.partition, slurm.gpus_per_node, slurm.processes_per_node) == ("main", 2, 2)
    trains.opsctl("init", "--example", "counting", "--dir", "example")
    assert "would submit 2 tasks of 2 nodes" in trains.opsctl("launch", "example/train.toml", "--dry-run")
