"""Saves in the background: their size, their cost, pruning, and ranks that wait for a save before they exit."""

import re

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import model_parameters
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")

ENDLESS = tiny(steps=100_000, precision="bf16", checkpoint={"every": 0})


def total_size(path) -> int:
    return sum(record.size for record in manifest.read_manifest(path).files.values())


@pytest.fixture(scope="session")
def heavy(trains):
    """A finished train of one rank with checkpoints of 45 MB, three of them saved in the background, and pruning."""
    model = {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64, "vocabulary": 264}
    run = trains(
        **tiny(
            steps=8,
            precision="bf16",
            model=model,
            parallel={"pipeline": 1},
            checkpoint={"every": 2, "keep_last": 2, "keep_every": 4},
            batch={"micro_batch": 2, "global_batch": 16},
        )
    )
    (run.checkpoints / ".removing-step-0000001").mkdir(parents=True)
    (run.checkpoints / ".removing-step-0000001/rank-00000.pt").touch()
    assert run.start(world=1).finish() == [0], run.attempts[0].log
    return run


def test_checkpoint_takes_fifteen_bytes_per_parameter(heavy):
    path = heavy.checkpoints / "step-0000008"
    parameters = model_parameters(ModelConfig(layers=4, hidden=256, sequence=64, vocabulary=264))
    files = manifest.read_manifest(path).files
    weights = sum(record.size for name, record in files.items() if name.startswith("layer_"))
    tied = 264 * 256  # embedding and output are one weight, in two files
    assert weights <= 2.05 * (parameters + tied)
    assert total_size(path) <= 15 * parameters


def test_log_reports_how_long_training_stood_still(heavy):
    line = r"saved checkpoint step-(\d+) in ([\d.]+) s; training stood still for ([\d.]+) s"
    saves = re.findall(line, heavy.attempts[0].log)
    assert [int(step) for step, _, _ in saves] == [2, 4, 6, 8]
    assert all(float(stall) <= float(seconds) + 0.1 for _, seconds, stall in saves)


def test_pruning_keeps_the_last_and_every_nth_checkpoint(heavy):
    assert [c.step for c in manifest.list_checkpoints(heavy.checkpoints)] == [4, 6, 8]
    assert "removed checkpoint step-0000002" in heavy.attempts[0].log


def test_pruning_finishes_an_interrupted_removal(heavy):
    assert not list(heavy.checkpoints.glob(".*"))


def test_ranks_wait_for_a_save_before_they_exit(train):
    """A train stopped during a save completes this save and the last one."""
    model = {"layers": 2, "hidden": 384, "heads": 2, "sequence": 32}
    run = train(**(ENDLESS | {"model": model, "checkpoint": {"every": 0, "keep_last": 0}}))
    attempt = run.start(world=2)
    attempt.wait_for_step(1)

    def is_saving() -> bool:
        if any(run.checkpoints.glob(".saving-*")):
            return True
        run.arm("save")  # the previous save may have ended between two polls
        return False

    attempt.wait_for(is_saving, "a save in progress")
    run.arm("stop")
    assert attempt.finish() == [0, 0], attempt.log
    assert attempt.stop_reason.checkpoint_step == attempt.stop_reason.step
    assert not list(run.checkpoints.glob(".saving-*"))
    for checkpoint in manifest.list_checkpoints(run.checkpoints):
        assert manifest.verify(checkpoint.path) == []
    assert attempt.log.count("saved checkpoint") == len(manifest.list_checkpoints(run.checkpoints))
