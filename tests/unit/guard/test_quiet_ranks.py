"""When the guard is certain that an attempt hangs."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.guard.quiet_ranks import QuietRanks, read_marks
from opsctl.guard.rank_activity import Activity
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.signs import LogSigns
from opsctl.trainer.contract import Heartbeat, Phase
from tests.support.clocks import FakeClock


def leave_mark(marks: Path, name: str) -> None:
    """Leave a mark such as `idle-5-6` on a node with two ranks."""
    kind, rank, of = name.split("-")
    marks.mkdir(parents=True, exist_ok=True)
    activity = Activity(0, f"{marks}/node{int(rank) // 2}", {"RANK": rank, "WORLD_SIZE": of, "LOCAL_RANK": rank[-1]})
    activity.mark(kind)


class Attempt:
    """An attempt of six ranks whose log has a line every `line_s` seconds, until it is quiet."""

    def __init__(self, path: Path, *, limit_s: float | None = None) -> None:
        self.clock = FakeClock(datetime(2026, 3, 1, tzinfo=UTC))
        self.log, self.marks = path / "main_log.txt", path / "5_1.0" / "quiet"
        self.marks.mkdir(parents=True)
        self.log.touch()
        self.steps: list[int] = []
        self.highest = 0
        self.heartbeat: Heartbeat | None = None
        self.quiet = QuietRanks(
            marks=self.marks,
            log=self.log,
            read_log=self.read_log,
            read_heartbeat=lambda: self.heartbeat,
            clock=self.clock,
            limit_s=limit_s,
        )

    def read_log(self) -> LogSigns:
        if not self.steps:
            return LogSigns()
        lines = tuple(Iteration(step=step) for step in self.steps)
        return LogSigns(first=lines[0], steps=lines[-50:], highest=max(self.highest, self.steps[-1]))

    def train(self, lines: int, *, line_s: float = 1.0) -> str:
        why = ""
        for _ in range(lines):
            self.clock.sleep(line_s)
            self.steps.append(len(self.steps) + 1)
            self.log.write_text("x" * len(self.steps))
            why = why or self.quiet.find_hang()
        return why

    def mark(self, *names: str) -> None:
        for name in names:
            leave_mark(self.marks, name)

    def clear(self) -> None:
        for path in self.marks.iterdir():
            path.unlink()

    def wait(self, seconds: float) -> str:
        until_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_s:
            self.clock.sleep(2)
            if why := self.quiet.find_hang():
                return why
        return ""


def make_heartbeat(attempt, *, phase=Phase.TRAIN, step=30):
    at = attempt.clock.now().timestamp()
    return Heartbeat(at=at, attempt="5_1.0", phase=phase, step=step, limit_s=60.0, node="node001", rank=0)


IDLE = tuple(f"idle-{rank}-6" for rank in range(6))
STOPPED = (*IDLE[:5], "stopped-5-6")


@pytest.fixture
def attempt(tmp_path):
    return Attempt(tmp_path)


def test_stopped_rank_is_a_hang_after_20_quiet_seconds(attempt):
    attempt.train(30)
    attempt.mark(*STOPPED)
    (attempt.marks.parent / "node003-4..5.log").touch()
    assert attempt.wait(18) == ""
    assert attempt.wait(6) == "no progress for 22 s (limit 20 s); stopped by a signal (state T): rank 5 on node003"


def test_one_stopped_rank_is_enough(attempt):
    attempt.train(30)
    attempt.mark("stopped-5-6")  # the others use the CPU while they wait for a GPU
    assert "rank 5" in attempt.wait(30)


@pytest.mark.parametrize(("is_restart_cheap", "limit_s"), [(True, 46), (False, 300)])
def test_idle_ranks_are_a_hang_sooner_if_a_restart_is_cheap(attempt, is_restart_cheap, limit_s):
    attempt.quiet.is_restart_cheap = lambda: is_restart_cheap
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(limit_s - 10) == ""
    assert "no rank uses the CPU" in attempt.wait(20)


@pytest.mark.parametrize("marks", [IDLE, ["stopped-5-6"]], ids=["light trainer", "left by an earlier step of the body"])
def test_marks_beside_progress_are_no_hang(attempt, marks):
    attempt.mark(*marks)
    assert attempt.train(400) == ""


def test_limit_covers_20_lines(attempt):
    attempt.train(30, line_s=60)
    attempt.mark(*STOPPED)
    assert attempt.wait(1190) == ""
    assert "limit 1200 s" in attempt.wait(20)


def test_limit_covers_three_times_the_longest_pause(attempt):
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(250) == ""
    attempt.clear()
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(740) == ""
    assert attempt.wait(40) != ""


def test_ranks_that_wait_for_an_ended_rank_are_a_hang(attempt):
    attempt.train(30)
    attempt.mark(*IDLE[:5], "ended-5-6")
    assert "no rank uses the CPU" in attempt.wait(320)


@pytest.mark.parametrize(
    ("lines", "marks"),
    [(30, IDLE[:5]), (30, tuple(f"ended-{rank}-6" for rank in range(1, 6))), (4, IDLE)],
    ids=["a rank works", "a rank saves after the others have ended", "the start"],
)
def test_ranks_that_may_work_are_no_hang(attempt, lines, marks):
    attempt.train(lines)
    attempt.mark(*marks)
    assert attempt.wait(2000) == ""


def test_stopped_rank_at_the_start_has_5_minutes(attempt):
    attempt.mark("stopped-0-6")
    assert attempt.wait(290) == ""
    assert attempt.wait(20) != ""


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.EVAL, Phase.SAVE, Phase.EXIT])
def test_idle_ranks_in_another_phase_are_no_hang(attempt, phase):
    attempt.train(30)
    attempt.mark(*IDLE)
    attempt.heartbeat = make_heartbeat(attempt, phase=phase)
    assert attempt.wait(2000) == ""


def test_setting_replaces_the_limit(tmp_path):
    attempt = Attempt(tmp_path, limit_s=7)
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(6) == ""
    assert "limit 7 s" in attempt.wait(4)


def test_0_seconds_is_never(tmp_path):
    attempt = Attempt(tmp_path, limit_s=0)
    attempt.train(30)
    attempt.mark(*STOPPED)
    assert attempt.wait(2000) == ""


def test_action_of_the_trainer_is_progress(tmp_path):
    attempt = Attempt(tmp_path, limit_s=60)
    attempt.train(30)
    for step in range(50):  # the log has a line every 100 s, the heartbeat a time every 5 s
        attempt.clock.sleep(5)
        attempt.heartbeat = make_heartbeat(attempt, step=30 + step)
        assert attempt.quiet.find_hang() == ""
    attempt.mark(*IDLE)
    assert attempt.wait(56) == ""
    assert attempt.wait(10) != ""


def test_clock_of_the_trainers_node_ends_no_attempt(attempt):
    """The clock of rank 0 is an hour behind, a line takes 100 s, and a person stops a rank for a moment."""
    attempt.train(30)
    attempt.clock.sleep(100)
    heartbeat = make_heartbeat(attempt)
    attempt.heartbeat = replace(heartbeat, at=heartbeat.at - 3600)
    attempt.mark("stopped-5-6")
    assert attempt.wait(10) == ""
    attempt.clear()
    attempt.wait(2)
    attempt.mark("stopped-5-6")
    assert attempt.wait(100) != "", "the same heartbeat is no progress"


def test_steps_done_again_are_progress(attempt):
    attempt.train(400)
    attempt.steps = attempt.steps[:20]  # the trainer has gone back inside the attempt
    attempt.highest = 400
    attempt.mark("stopped-5-6")
    assert attempt.train(300) == ""


def test_log_of_unknown_format_that_grows_is_progress(attempt):
    attempt.mark("stopped-5-6")
    for size in range(400):
        attempt.clock.sleep(2)
        attempt.log.write_text("x" * size)
        assert attempt.quiet.find_hang() == ""


def print_lines(attempt, seconds):
    for _ in range(seconds // 30):
        attempt.log.write_text(attempt.log.read_text() + "a line without a step\n")
        if why := attempt.wait(30):
            return why
    return ""


def test_idle_ranks_that_print_are_no_hang(attempt):
    attempt.train(30)
    attempt.mark(*IDLE)
    assert print_lines(attempt, 2000) == ""
    assert "no rank uses the CPU" in attempt.wait(2000)


def test_warnings_of_its_peers_do_not_free_a_stopped_rank(attempt):
    attempt.train(30)
    attempt.mark(*STOPPED)
    assert "rank 5" in print_lines(attempt, 60)


def test_ranks_that_work_again_have_advanced(attempt):
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(320) != ""
    assert not attempt.quiet.has_advanced()
    attempt.clear()
    assert attempt.quiet.has_advanced()


def test_suspended_job_is_no_hang(attempt):
    attempt.train(30)
    attempt.mark(*IDLE)
    assert attempt.wait(20) == ""
    attempt.clock.sleep(7200)  # Slurm suspends the guard with the ranks
    assert attempt.wait(10) == ""
    attempt.clear()
    assert attempt.train(30) == ""


def test_other_entries_are_no_marks(tmp_path):
    for name in ("stopped", "idle-0-x", "stopped-1-2-3", "other-0-1", "idle-²-1", "stopped-99999999999-1"):
        (tmp_path / name).touch()
    assert read_marks(tmp_path) == ([], False)
    assert read_marks(tmp_path / "none") == ([], False)
