"""Interrupted and resumed runs have the losses and the checkpoint bytes of an uninterrupted run."""

import contextlib
import os
import random
import shutil
import signal

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.checkpoint.resume import Resuming
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Phase, TrainerStop, read_step_times
from opsctl.trainer.errors import Refused
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")


def read_files(train, step):
    return manifest.read_manifest(train.checkpoints / manifest.directory_name(step)).files


def test_run_finishes_with_a_stop_reason(uninterrupted):
    attempt = uninterrupted.attempts[0]
    assert sorted(attempt.losses) == list(range(1, 21))
    assert float(attempt.losses[20]) < float(attempt.losses[1])
    assert attempt.stop_reason.reason is TrainerStop.FINISHED
    assert (attempt.stop_reason.step, attempt.stop_reason.checkpoint_step) == (20, 20)
    for name in ("train", "node0-0", "node1-0"):
        assert attempt.heartbeat(name).phase is Phase.EXIT
        assert attempt.heartbeat(name).step == 20
    assert [c.step for c in manifest.list_checkpoints(uninterrupted.checkpoints)] == [10, 20]
    assert manifest.verify(uninterrupted.checkpoints / "step-0000020") == []
    assert sorted(p.name for p in uninterrupted.checkpoints.iterdir()) == ["step-0000010", "step-0000020"]


def test_every_rank_writes_the_times_of_its_own_work(uninterrupted):
    times = [read_step_times(uninterrupted.run_dir / "step-times" / f"{rank}.json") for rank in range(4)]
    assert [(rank.node, rank.local_rank, rank.steps) for rank in times] == [
        ("node0", 0, 20),
        ("node0", 1, 20),
        ("node1", 0, 20),
        ("node1", 1, 20),
    ]
    assert [rank.work for rank in times] == [*["stage 0 on CPU"] * 2, *["stage 1 on CPU"] * 2]
    assert all(0 < rank.compute_s < 10 for rank in times)


def test_damaged_checkpoint_is_skipped_bit_exactly(uninterrupted, train):
    run = train(**tiny())
    run.adopt(uninterrupted)
    damaged = sorted((run.checkpoints / "step-0000020").glob("*optim_states.pt"))[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    shutil.copytree(run.checkpoints / "step-0000010", run.checkpoints / "step-0000030")

    attempt = run.start()
    assert attempt.finish() == [0, 0, 0, 0], attempt.log
    assert f"{damaged.name} has changed since it was written" in attempt.log
    assert (run.checkpoints / "damaged-step-0000020").is_dir()
    copy, other = attempt.stop_reason.notes
    assert "damaged-step-0000030: step-0000030: the manifest is that of step 10" in copy
    assert other.startswith("damaged checkpoint set aside as ")

    whole = uninterrupted.attempts[0].losses
    assert attempt.losses == {step: whole[step] for step in range(11, 21)}
    assert read_files(run, 20) == read_files(uninterrupted, 20)  # weights, optimizer and random state, byte for byte


def test_killed_run_resumes_bit_exactly(uninterrupted, train):
    moment = random.Random(5)
    run = train(**tiny(checkpoint={"every": 3}))

    attempt = run.start()
    attempt.wait_for_step(moment.randint(1, 5))  # well before the last step
    victim = moment.choice(attempt.pids)
    os.kill(victim, signal.SIGKILL)
    assert 0 not in attempt.finish()  # the other ranks notice the death and exit
    assert attempt.stop_reason is None
    attempts = [attempt]

    attempt = run.start()
    attempt.wait_for_step(max(attempts[0].losses) + 2)
    attempt.launcher.kill()
    attempt.launcher.wait()
    attempt.wait_until_gone(attempt.pids)
    attempts.append(attempt)

    attempts.append(run.start())
    assert attempts[-1].finish() == [0, 0, 0, 0], attempts[-1].log
    whole = uninterrupted.attempts[0].losses
    for attempt in attempts:
        assert attempt.losses == {step: whole[step] for step in attempt.losses}
    assert read_files(run, 20) == read_files(uninterrupted, 20)


def test_changed_number_of_steps_needs_to_be_accepted(uninterrupted, train):
    """Over more steps the cosine stands higher at step 20."""
    run = train(**tiny(steps=22))
    run.adopt(uninterrupted)
    attempt = run.start()
    assert set(attempt.finish()) == {2}
    assert "the learning rate of step 20 was 0 and is " in attempt.log

    run.config["accept"] = True
    attempt = run.start()
    assert attempt.finish() == [0, 0, 0, 0], attempt.log
    assert sorted(attempt.losses) == [21, 22]
    saved = manifest.read_manifest(run.checkpoints / manifest.directory_name(22))
    assert (saved.rate, saved.optimizer["decay"]) == (0.0, "cosine")
    assert sum(saved.positions.values()) == saved.consumed_samples


@pytest.mark.parametrize(("lr_scale", "steps", "is_refused"), [(0.5, 20, False), (1.0, 20, False), (0.5, 40, True)])
def test_another_scale_of_the_rate_is_no_jump(lr_scale, steps, is_refused, tmp_path):
    saved_config = TrainerConfig.model_validate(tiny(optimizer={"lr_scale": 1.0}))
    config = TrainerConfig.model_validate(tiny(steps=steps, optimizer={"lr_scale": lr_scale}))
    saved = manifest.Manifest(
        step=10,
        consumed_samples=160,
        topology={},
        model={},
        precision="fp32",
        optimizer=saved_config.optimizer.model_dump(),
        rate=saved_config.rate().at(160),
    )
    assert config.rate().at(160) == pytest.approx(lr_scale * saved.rate) or steps == 40
    resuming = Resuming(directory=tmp_path, config=config, topology={}, control=None)
    with pytest.raises(Refused) if is_refused else contextlib.nullcontext():
        resuming._refuse_other_rate(manifest.Checkpoint(10, tmp_path), saved)
