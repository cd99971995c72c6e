"""Removal of old checkpoints and remains: a rename at once, a deletion that no rank waits for."""

import shutil
import threading
from datetime import timedelta

import pytest

pytest.importorskip("deepspeed")

from opsctl.trainer import manifest
from opsctl.trainer.checkpoint import save
from opsctl.trainer.checkpoint.resume import Resuming
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_process import RankProcess
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch


class OneRank:
    """A group of one rank."""

    process = RankProcess(rank=0, world_size=1, local_rank=0, node="here")

    def __init__(self, process: RankProcess, *, timeout: timedelta) -> None:
        pass


class Engine:
    """An engine that writes nothing."""

    def write_with(self, recorder) -> None:
        pass


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """A function that makes the checkpoints of a run of one rank, in a directory with the remains of a save."""
    (tmp_path / ".saving-step-0000001").mkdir()
    (tmp_path / ".saving-step-0000001" / "big").touch()
    monkeypatch.setattr(save, "Control", OneRank)

    def make(**tables):
        config = TrainerConfig.model_validate(tiny(**tables))
        group = OneRank(OneRank.process, timeout=timedelta(0))
        resuming = Resuming(directory=tmp_path, config=config, topology={}, control=group)
        return save.Checkpoints(resuming, Engine(), parameters=1000)

    return make


@pytest.fixture
def slow_deletion(monkeypatch):
    """The event that a deletion waits for."""
    allowed, delete = threading.Event(), shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path: allowed.wait(250) and delete(path))
    yield allowed
    allowed.set()


def test_save_does_not_wait_for_the_deletion_of_remains(tmp_path, checkpoints, slow_deletion):
    saves = checkpoints()
    part = saves._directory / ".saving-step-0000002"
    assert saves._prepare(part) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [".removing-.saving-step-0000001", part.name]
    slow_deletion.set()
    saves.close()
    assert [path.name for path in tmp_path.iterdir()] == [part.name]


def test_space_that_a_deletion_frees_is_waited_for(tmp_path, checkpoints, slow_deletion, monkeypatch):
    """The wait is shorter than that of the other ranks, which wait for rank 0."""
    monkeypatch.setattr(save, "shortage", lambda place, **_: "full" if list(place.glob(".removing-*")) else "")
    saves = checkpoints(parallel={"pipeline": 2, "timeout_s": 0.2})
    part = saves._directory / ".saving-step-0000002"
    assert saves._prepare(part) == "full"
    threading.Timer(0.05, slow_deletion.set).start()
    saves._config = TrainerConfig.model_validate(tiny())
    assert saves._prepare(part) == ""


def test_second_removal_of_a_name_takes_another(tmp_path):
    for _ in range(2):
        (tmp_path / "step-0000005").mkdir()
        manifest.retire(tmp_path / "step-0000005")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".removing-step-0000005", ".removing-step-0000005.1"]
    manifest.sweep(tmp_path)
    assert not list(tmp_path.iterdir())
