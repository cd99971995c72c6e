"""Hangs, of trainers with a heartbeat and without. Clocks stand still or jump; files are real."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.model import JobState, Level
from opsctl.state.files import write_atomic
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from opsctl.watchdogs import hang_stacks
from tests.support.watch_context import LINE, T0, Stage, job, waiting

Minutes = Callable[[float], timedelta]
TICK = timedelta(minutes=10)


@pytest.fixture
def running(stage: Stage) -> Stage:
    """An attempt that begins, clocks that agree, and nobody who waits for stacks."""
    stage.site = {"watch": {"clock_tolerance_seconds": 0}}
    stage.config = {"stacks_seconds": 0}
    stage.attempt.path.mkdir(parents=True)
    stage.start_job()
    return stage


def beat(stage: Stage, phase: Phase, *, limit_s: float, step: int = 5, attempt: str = "7_1.0") -> None:
    record = Heartbeat(
        attempt=attempt, node="n1", rank=0, phase=phase, step=step, at=stage.clock.time.timestamp(), limit_s=limit_s
    )
    write_atomic(stage.run.heartbeat / "train.json", to_json(record))


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_trainer_that_goes_on_in_a_log_that_was_moved_aside_does_not_hang(
    running: Stage, *, has_successor: bool
) -> None:
    running.steps(1, 5)
    running.judge("hang", after=TICK)
    with running.run.main_log.open("a") as log:
        running.run.main_log.rename(running.run.logs / "main_log.txt.1")
        if has_successor:
            running.run.main_log.touch()
        for step in range(5, 15):
            log.write(LINE.format(step=step, step_s=1.0, loss=2.0) + "\n")
            log.flush()
            assert running.judge("hang", after=TICK).level is Level.OK
    assert running.judge("hang", after=6 * TICK).level is Level.CRITICAL


def test_nothing_that_runs_is_no_hang(stage: Stage) -> None:
    stage.jobs = (waiting("Priority"),)
    assert stage.judge("hang").summary == "gpt: no task runs"


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_has_the_time_that_its_heartbeat_says(running: Stage, phase: Phase, minutes: Minutes) -> None:
    running.steps(1, 9)
    running.judge("hang")
    running.write_log("iteration 9/ 10 | lm loss: 2.0 |")
    beat(running, phase, limit_s=1800)
    assert running.judge("hang").level is Level.OK
    assert running.judge("hang", after=minutes(29)).level is Level.OK
    finding = running.judge("hang", after=minutes(2))
    assert (finding.level, finding.summary) == (
        Level.CRITICAL,
        f"7_1.0 hangs: {phase}, step 9, no sign of life for 31m (limit 30m)",
    )
    assert finding.remedy == "opsctl stacks gpt; opsctl cancel gpt_1"


def test_the_heartbeat_of_an_earlier_attempt_says_nothing(running: Stage, minutes: Minutes) -> None:
    beat(running, Phase.TRAIN, limit_s=60, attempt="6_1.0")
    finding = running.judge("hang", after=minutes(55))
    assert (finding.level, "starting" in finding.summary) == (Level.OK, True)
    assert running.judge("hang", after=minutes(10)).level is Level.CRITICAL


def test_a_heartbeat_that_can_not_be_written_is_no_hang_while_lines_come(running: Stage, minutes: Minutes) -> None:
    beat(running, Phase.TRAIN, limit_s=300)
    for step in range(1, 60, 10):
        running.steps(step, step + 10)
        assert running.judge("hang", after=minutes(4)).level is Level.OK
    assert running.judge("hang", after=minutes(6)).level is Level.CRITICAL


def test_a_clock_that_is_ninety_seconds_behind_makes_no_hang(running: Stage) -> None:
    running.site = {}
    beat(running, Phase.TRAIN, limit_s=60)
    assert running.judge("hang", after=timedelta(seconds=60 + 90)).level is Level.OK
    assert running.judge("hang", after=timedelta(seconds=31)).level is Level.CRITICAL


def test_a_clock_that_is_ahead_makes_none_either(running: Stage) -> None:
    running.clock.time += timedelta(seconds=90)
    beat(running, Phase.TRAIN, limit_s=60)
    running.clock.time = T0
    assert running.judge("hang").level is Level.OK


def test_a_trainer_without_a_heartbeat_is_held_against_its_own_rhythm(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    for tick in range(12):  # a line takes 200 s
        running.steps(3 * tick + 1, 3 * tick + 4, step_s=200)
        assert running.judge("hang", after=TICK).level is Level.OK
    # 20 lines of 200 s are 67 minutes.
    assert running.judge("hang", after=minutes(60)).level is Level.OK
    assert running.judge("hang", after=minutes(10)).level is Level.CRITICAL


def test_an_evaluation_that_ended_well_is_learnt(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 600)
    for _ in range(4):  # 40 minutes without a line, seen every 10, then it goes on
        assert running.judge("hang", after=minutes(3)).level is Level.OK
    running.steps(600, 1200)
    running.judge("hang", after=TICK)
    for _ in range(2):
        running.steps(1200, 1210)
        running.judge("hang", after=minutes(1))
    assert running.judge("hang", after=minutes(14)).level is Level.OK
    assert running.judge("hang", after=minutes(30)).level is Level.CRITICAL


def test_that_nobody_looked_for_a_day_is_not_learnt_as_a_pause(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=TICK)
    running.steps(50, 100)
    running.judge("hang", after=timedelta(days=1))
    assert running.judge("hang", after=minutes(16)).level is Level.CRITICAL


def test_a_long_save_is_a_sign_of_attempt_as_long_as_its_files_grow(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=TICK)
    (running.run.checkpoints / "step50").mkdir()
    for shard in range(5):
        (running.run.checkpoints / f"step50/{shard}.pt").write_bytes(b"x")
        assert running.judge("hang", after=minutes(14)).level is Level.OK
    assert running.judge("hang", after=minutes(60)).level is Level.CRITICAL


def test_a_log_that_goes_on_talking_without_steps_is_no_sign_of_attempt(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=minutes(1))
    for _ in range(3):
        running.write_log("[rank 3] Watchdog caught collective operation timeout", "PULSE: gpt is running")
        finding = running.judge("hang", after=minutes(6))
    assert finding.level is Level.CRITICAL


def test_a_limit_that_is_said_is_for_steps_and_not_for_saving(running: Stage, minutes: Minutes) -> None:
    running.config = {"hang_minutes": 2, "stacks_seconds": 0}
    beat(running, Phase.SAVE, limit_s=3600)
    assert running.judge("hang", after=minutes(30)).level is Level.OK
    beat(running, Phase.TRAIN, limit_s=3600)
    assert running.judge("hang", after=minutes(3)).level is Level.CRITICAL


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING])
def test_a_task_that_does_not_run_does_not_hang(running: Stage, state: JobState, minutes: Minutes) -> None:
    running.steps(1, 50)
    running.judge("hang")
    running.jobs = (job(state=state, start=T0),)
    assert running.judge("hang", after=minutes(600)).summary == "gpt: no task runs"


def test_a_task_that_was_suspended_is_not_called_dead_when_it_goes_on(running: Stage, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=minutes(1))
    running.jobs = (job(state=JobState.SUSPENDED, start=T0),)
    running.judge("hang", after=minutes(1))
    running.start_job(since=T0)
    running.write_log("resumed")
    assert running.judge("hang", after=timedelta(hours=5)).level is Level.OK


def test_without_memory_the_log_s_age_is_where_it_begins(running: Stage) -> None:
    """Where nothing can be kept, each look is a first one, and a run that is dead for days is found all the same."""
    running.steps(1, 50)
    running.clock.time += timedelta(days=400)  # the file was written now
    assert running.judge("hang").level is Level.CRITICAL


def test_a_lifes_first_look_does_not_take_the_last_lifes_lines_for_its_own(running: Stage, minutes: Minutes) -> None:
    running.steps(1, 50)
    running.start_job(since=running.clock.time + minutes(5))
    running.judge("hang", after=minutes(6))
    assert running.judge("hang", after=minutes(50)).level is Level.OK


def test_stacks_are_asked_for_once_and_summed_up(running: Stage, minutes: Minutes) -> None:
    running.config = {"stacks_seconds": 1}
    beat(running, Phase.TRAIN, limit_s=60)
    running.judge("hang")
    finding = running.judge("hang", after=minutes(2))
    assert running.attempt.stacks_request.exists()
    assert finding.evidence[0] == "2 of 2 ranks did not answer"
    running.attempt.stacks_request.unlink()
    assert running.judge("hang", after=minutes(2)).evidence == finding.evidence
    assert not running.attempt.stacks_request.exists()


def test_a_look_leaves_no_trace_where_it_may_not(running: Stage, minutes: Minutes) -> None:
    running.acts = False
    beat(running, Phase.TRAIN, limit_s=60)
    assert running.judge("hang", after=minutes(2)).level is Level.CRITICAL
    assert not running.attempt.stacks_request.exists()


DUMP = """at 3.0
Current thread 0x1 (most recent call first):
  File "trainer/stack_requests.py", line 47 in _dump
  File "threading.py", line 982 in run

Thread 0x2 (most recent call first):
  File "torch/distributed/distributed_c10d.py", line 2420 in barrier
  File "trainer/loop.py", line 91 in train
"""


def test_ranks_are_grouped_by_where_they_are_the_odd_one_first(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"node-a-{rank}.txt").write_text(DUMP)
    (tmp_path / "node-a-2.txt").write_text(DUMP.replace("in barrier", "in read").replace("2420", "7"))
    assert hang_stacks.summary(tmp_path, ranks=5) == [
        "1 rank (node node-a: 2) in read at loop.py:91",
        "3 ranks (node node-a: 0-1,3) in barrier at loop.py:91",
        "1 of 5 ranks did not answer",
        f"stacks: {tmp_path}",
    ]


@pytest.mark.parametrize("dump", ["", "Thread 0x", "\x00\xff", "Thread 0x1 (most recent call first):\n"])
def test_a_dump_that_was_cut_off_is_nowhere(tmp_path: Path, dump: str) -> None:
    (tmp_path / "n1-0.txt").write_text(dump)
    assert hang_stacks.summary(tmp_path, ranks=1)[0] == "1 rank (node n1: 0) nowhere that can be told"
