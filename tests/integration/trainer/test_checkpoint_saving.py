"""A save beside training: what it weighs, what it costs, what it removes, and that nobody leaves before it is done."""

import re

import pytest

from opsctl.trainer import flops, manifest
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")

ENDLESS = tiny(steps=100_000, precision="bf16", checkpoint={"every": 0})


def size(path) -> int:
    return sum(record.size for record in manifest.read_manifest(path).files.values())


@pytest.fixture(scope="session")
def heavy(trains):
    """A train of one rank whose checkpoint takes 45 MB; it saved three times in the background, pruned, and left."""
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


def test_a_whole_checkpoint_takes_at_most_fifteen_bytes_a_parameter_and_weights_two(heavy):
    path = heavy.checkpoints / "step-0000008"
    parameters = flops.parameters(layers=4, hidden=256, sequence=64, vocabulary=264)
    files = manifest.read_manifest(path).files
    weights = sum(record.size for name, record in files.items() if name.startswith("layer_"))
    tied = 264 * 256  # embedding and output are one weight, in two files
    assert weights <= 2.05 * (parameters + tied)
    assert size(path) <= 15 * parameters


def test_the_log_says_how_long_training_stood_still(heavy):
    line = r"saved checkpoint step-(\d+) in ([\d.]+) s; training stood still for ([\d.]+) s"
    saves = re.findall(line, heavy.attempts[0].log)
    assert [int(step) for step, _, _ in saves] == [2, 4, 6, 8]
    assert all(float(stall) <= float(seconds) + 0.1 for _, seconds, stall in saves)


def test_pruning_keeps_the_last_and_every_nth(heavy):
    assert [c.step for c in manifest.list_checkpoints(heavy.checkpoints)] == [4, 6, 8]
    assert "removed checkpoint step-0000002" in heavy.attempts[0].log


def test_pruning_finishes_a_removal_of_an_earlier_attempt_that_was_cut_off(heavy):
    assert not list(heavy.checkpoints.glob(".*"))


def test_a_save_in_flight_is_waited_for_before_leaving(train):
    """Stopped in the midst of a save: that one is whole, and so is the last."""
    model = {"layers": 2, "hidden": 384, "heads": 2, "sequence": 32}
    run = train(**(ENDLESS | {"model": model, "checkpoint": {"every": 0, "keep_last": 0}}))
    attempt = run.start(world=2)
    attempt.wait_for_step(1)

    def is_saving() -> bool:
        if is_saving := any(run.checkpoints.glob(".saving-*")):
            return is_saving
        run.arm("save")  # the one before was over before it was seen
        return False

    attempt.wait_for(is_saving, "a save to be seen")
    run.arm("stop")
    assert attempt.finish() == [0, 0], attempt.log
    assert attempt.stop_reason.checkpoint_step == attempt.stop_reason.step
    assert not list(run.checkpoints.glob(".saving-*"))
    for checkpoint in manifest.list_checkpoints(run.checkpoints):
        assert manifest.verify(checkpoint.path) == []
    assert attempt.log.count("saved checkpoint") == len(manifest.list_checkpoints(run.checkpoints))
