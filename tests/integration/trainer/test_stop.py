"""All ranks obey a request to save or to stop after the same step."""

import os
import signal
import time

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.contract import Phase, TrainerStop
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")

ENDLESS = tiny(steps=100_000, precision="bf16", checkpoint={"every": 0}, limits={"margin_s": 1.0})


def assert_saved_and_stopped(run, attempt, reason):
    stop = attempt.stop_reason
    assert stop is not None and stop.reason is reason, attempt.log
    assert stop.checkpoint_step == stop.step == max(attempt.losses)
    assert manifest.verify(run.checkpoints / manifest.directory_name(stop.step)) == []
    assert attempt.heartbeat("train").phase is Phase.EXIT


def test_save_and_kill_switch_are_obeyed(train):
    run = train(**ENDLESS)
    attempt = run.start()
    attempt.wait_for_step(2)

    save = run.arm("save")
    attempt.wait_for(lambda: not save.exists(), "the save switch to disappear")
    saved = manifest.find_newest_complete(run.checkpoints)
    attempt.wait_for_step(saved.step + 2)

    run.arm("kill")
    assert attempt.finish() == [0, 0, 0, 0]
    assert_saved_and_stopped(run, attempt, TrainerStop.KILL)
    assert str(run.run_dir / "kill") in attempt.stop_reason.detail
    assert attempt.heartbeat("node1-0").step == attempt.stop_reason.step
    assert [c.step for c in manifest.list_checkpoints(run.checkpoints)] == [saved.step, attempt.stop_reason.step]

    again = run.start()
    assert again.finish() == [0, 0, 0, 0]
    assert not again.losses
    assert again.stop_reason.reason is TrainerStop.KILL
    assert again.stop_reason.step == again.stop_reason.checkpoint_step == attempt.stop_reason.step


@pytest.mark.parametrize(("switch", "reason"), [("pause", TrainerStop.PAUSE), ("stop", TrainerStop.STOP_REQUEST)])
def test_pause_and_stop_request_are_obeyed(train, switch, reason):
    run = train(**ENDLESS)
    attempt = run.start(world=2)
    attempt.wait_for_step(1)
    run.arm(switch)
    assert attempt.finish() == [0, 0]
    assert_saved_and_stopped(run, attempt, reason)


def test_deadline_may_move_closer(train):
    run = train(**ENDLESS)
    deadline = run.run_dir / "deadline"
    deadline.write_text(f"{time.time() + 3600}\n")
    attempt = run.start(world=2)
    attempt.wait_for_step(2)
    end = time.time() + 8
    deadline.write_text(f"{end}\n")
    assert attempt.finish() == [0, 0]
    assert attempt.stop_reason.at < end
    assert_saved_and_stopped(run, attempt, TrainerStop.DEADLINE)
    assert "the job ends in " in attempt.stop_reason.detail

    deadline.write_text(f"{time.time()}\n")  # too late for a start and a save, however fast the machine is
    again = run.start(world=2)
    assert again.finish() == [0, 0]
    assert again.stop_reason.reason is TrainerStop.DEADLINE
    assert not again.losses


def test_signal_to_one_rank_stops_all_ranks(train):
    run = train(**ENDLESS)
    attempt = run.start(world=2)
    attempt.wait_for_step(2)
    os.kill(attempt.pids[1], signal.SIGUSR1)
    assert attempt.finish() == [0, 0]
    assert_saved_and_stopped(run, attempt, TrainerStop.STOP_REQUEST)


def test_silent_rank_is_waited_for_until_the_timeout(train):
    run = train(**(ENDLESS | {"parallel": {"pipeline": 2, "timeout_s": 6.0}}))
    attempt = run.start()
    attempt.wait_for_step(2)
    stopped, *others = attempt.pids
    os.kill(stopped, signal.SIGSTOP)
    attempt.wait_until_gone(others)
    os.kill(stopped, signal.SIGKILL)
    assert 0 not in attempt.finish()
    assert attempt.stop_reason is None


def test_no_rank_outlives_its_launcher(train):
    attempt = train(**ENDLESS).start(world=2)
    attempt.wait_for_step(1)
    attempt.launcher.kill()
    attempt.launcher.wait()
    attempt.wait_until_gone(attempt.pids)


def test_stacks_are_written_on_request(train):
    run = train(**ENDLESS)
    attempt = run.start(world=2)
    attempt.wait_for_step(1)
    (run.run_dir / "stacks-request").touch()
    stacks = run.run_dir / "attempts" / "7_0.0" / "stacks"
    for name in ("node0-0.txt", "node0-1.txt"):
        attempt.wait_for(lambda name=name: (stacks / name).exists() and "train" in (stacks / name).read_text(), name)
    assert "Current thread" not in attempt.log
    os.kill(attempt.pids[1], signal.SIGUSR2)  # the signal works even where the interpreter never polls the file
    outermost = 'trainer/__main__.py", line '  # a frame of every stack of the main thread
    attempt.wait_for(lambda: "Current thread" in attempt.log and outermost in attempt.log, "the stacks in the log")
