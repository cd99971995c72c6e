"""Twenty steps are twenty steps, however often the run was cut: same losses, same bytes."""

import os
import random
import signal

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.contract import Phase, TrainerStop
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")


def files(train, step):
    return manifest.read_manifest(train.checkpoints / manifest.directory_name(step)).files


def test_a_run_finishes_and_says_so(uninterrupted):
    life = uninterrupted.lives[0]
    assert sorted(life.losses) == list(range(1, 21))
    assert float(life.losses[20]) < float(life.losses[1])
    assert life.stop_reason.reason is TrainerStop.FINISHED
    assert (life.stop_reason.step, life.stop_reason.checkpoint_step) == (20, 20)
    for name in ("train", "node0-0", "node1-0"):
        assert life.heartbeat(name).phase is Phase.EXIT
        assert life.heartbeat(name).step == 20
    assert [c.step for c in manifest.list_checkpoints(uninterrupted.checkpoints)] == [10, 20]
    assert manifest.verify(uninterrupted.checkpoints / "step-0000020") == []
    assert sorted(p.name for p in uninterrupted.checkpoints.iterdir()) == ["step-0000010", "step-0000020"]


def test_a_flipped_byte_is_found_and_the_one_before_resumed_bit_for_bit(uninterrupted, train):
    run = train(**tiny())
    run.adopt(uninterrupted)
    damaged = sorted((run.checkpoints / "step-0000020").glob("*optim_states.pt"))[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    life = run.start()
    assert life.finish() == [0, 0, 0, 0], life.log
    assert f"{damaged.name} has changed since it was written" in life.log
    assert (run.checkpoints / "damaged-step-0000020").is_dir()
    assert life.stop_reason.notes[0].startswith("damaged checkpoint set aside as ")

    whole = uninterrupted.lives[0].losses
    assert life.losses == {step: whole[step] for step in range(11, 21)}
    assert files(run, 20) == files(uninterrupted, 20)  # weights, optimizer and random state, byte for byte


def test_killed_at_random_moments_then_resumed_is_as_never_killed(uninterrupted, train):
    moment = random.Random(5)
    run = train(**tiny(checkpoint={"every": 3}))

    life = run.start()
    life.wait_for_step(moment.randint(1, 5))  # there are more to come than are done until it is killed
    victim = moment.choice(life.pids)
    os.kill(victim, signal.SIGKILL)
    assert 0 not in life.finish()  # without a word from anyone, the others notice and leave
    assert life.stop_reason is None
    lives = [life]

    life = run.start()
    life.wait_for_step(max(lives[0].losses) + 2)
    life.launcher.kill()
    life.launcher.wait()
    life.wait_until_gone(life.pids)
    lives.append(life)

    lives.append(run.start())
    assert lives[-1].finish() == [0, 0, 0, 0], lives[-1].log
    whole = uninterrupted.lives[0].losses
    for life in lives:
        assert life.losses == {step: whole[step] for step in life.losses}
    assert files(run, 20) == files(uninterrupted, 20)


def test_a_checkpoint_of_another_layout_is_refused(uninterrupted, train):
    run = train(**tiny())
    run.adopt(uninterrupted)
    life = run.start(world=2)
    assert life.finish() == [2, 2]
    assert "is of another run: data is 2 there and 1 here" in life.log
