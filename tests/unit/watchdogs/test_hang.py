"""Hangs of trainers with and without a heartbeat. The clock is fake, the files are real."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.findings import Severity
from opsctl.base.model import JobState
from opsctl.diagnosis.py_spy import FILE_NAME
from opsctl.diagnosis.stack_dumps import CANNOT_TRAIN, GONE, Stack, group_stacks, parse
from opsctl.state.files import write_atomic
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from opsctl.watchdogs.hang import RankProcesses, list_answered, render_silent, summarize_stacks
from tests.support.cases import read_table
from tests.support.watch_context import LINE, T0, Bench, job, waiting

Minutes = Callable[[float], timedelta]
TICK = timedelta(minutes=10)


@pytest.fixture
def running(bench: Bench) -> Bench:
    """A running attempt, with exact clocks and without waiting for stacks."""
    bench.site = {"watch": {"clock_tolerance_seconds": 0}}
    bench.config = {"stacks_seconds": 0}
    bench.attempt.path.mkdir(parents=True)
    bench.start_task()
    return bench


def write_heartbeat(bench: Bench, phase: Phase, *, limit_s: float, step: int = 5, attempt: str = "7_1.0") -> None:
    record = Heartbeat(
        attempt=attempt, node="n1", rank=0, phase=phase, step=step, at=bench.clock.time.timestamp(), limit_s=limit_s
    )
    write_atomic(bench.run.heartbeat / "train.json", to_json(record))


@pytest.mark.parametrize("has_successor", [True, False])
def test_rotated_log_is_no_hang(running: Bench, *, has_successor: bool) -> None:
    running.steps(1, 5)
    running.judge("hang", after=TICK)
    with running.run.main_log.open("a") as log:
        running.run.main_log.rename(running.run.logs / "main_log.txt.1")
        if has_successor:
            running.run.main_log.touch()
        for step in range(5, 15):
            log.write(LINE.format(step=step, step_s=1.0, loss=2.0) + "\n")
            log.flush()
            assert running.judge("hang", after=TICK).severity is Severity.OK
    assert running.judge("hang", after=6 * TICK).severity is Severity.CRITICAL


def test_idle_train_does_not_hang(bench: Bench) -> None:
    bench.jobs = (waiting("Priority"),)
    assert bench.judge("hang").summary == "gpt: no task runs"


@pytest.mark.parametrize("phase", list(Phase))
def test_limit_of_a_phase_comes_from_the_heartbeat(running: Bench, phase: Phase, minutes: Minutes) -> None:
    running.steps(1, 9)
    running.judge("hang")
    running.write_log("iteration 9/ 10 | lm loss: 2.0 |")
    write_heartbeat(running, phase, limit_s=1800)
    assert running.judge("hang").severity is Severity.OK
    assert running.judge("hang", after=minutes(29)).severity is Severity.OK
    finding = running.judge("hang", after=minutes(2))
    assert finding.severity is Severity.CRITICAL
    assert finding.summary == f"gpt hangs at step 9 ({phase}): no sign of life for 31m (limit 30m)"
    assert finding.fix.commands == (("opsctl", "stacks", "gpt"), ("opsctl", "cancel", "gpt_1"))


def test_heartbeat_of_an_earlier_attempt_is_ignored(running: Bench, minutes: Minutes) -> None:
    write_heartbeat(running, Phase.TRAIN, limit_s=60, attempt="6_1.0")
    finding = running.judge("hang", after=minutes(55))
    assert (finding.severity, "starting" in finding.summary) == (Severity.OK, True)
    assert running.judge("hang", after=minutes(10)).severity is Severity.CRITICAL


def test_log_lines_replace_a_stuck_heartbeat(running: Bench, minutes: Minutes) -> None:
    write_heartbeat(running, Phase.TRAIN, limit_s=300)
    for step in range(1, 60, 10):
        running.steps(step, step + 10)
        assert running.judge("hang", after=minutes(4)).severity is Severity.OK
    assert running.judge("hang", after=minutes(6)).severity is Severity.CRITICAL


def test_clock_behind_is_tolerated(running: Bench) -> None:
    running.site = {}
    write_heartbeat(running, Phase.TRAIN, limit_s=60)
    assert running.judge("hang", after=timedelta(seconds=60 + 90)).severity is Severity.OK
    assert running.judge("hang", after=timedelta(seconds=31)).severity is Severity.CRITICAL


def test_clock_ahead_is_tolerated(running: Bench) -> None:
    running.clock.time += timedelta(seconds=90)
    write_heartbeat(running, Phase.TRAIN, limit_s=60)
    running.clock.time = T0
    assert running.judge("hang").severity is Severity.OK


def test_rhythm_from_the_future_hides_no_hang(running: Bench, minutes: Minutes) -> None:
    running.clock.time += timedelta(days=1)
    running.judge("hang")
    running.steps(1, 5)
    running.judge("hang")
    running.clock.time = T0
    assert running.judge("hang", after=TICK).severity is Severity.OK
    assert running.judge("hang", after=minutes(16)).severity is Severity.CRITICAL


def test_heartbeat_from_the_future_hides_no_hang(running: Bench, minutes: Minutes) -> None:
    running.clock.time += timedelta(days=1)
    write_heartbeat(running, Phase.TRAIN, limit_s=60)
    running.clock.time = T0
    assert running.judge("hang").severity is Severity.OK
    assert running.judge("hang", after=minutes(2)).severity is Severity.CRITICAL


def test_limit_without_heartbeat_follows_the_log(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    for tick in range(12):  # one line every 200 s
        running.steps(3 * tick + 1, 3 * tick + 4, step_s=200)
        assert running.judge("hang", after=TICK).severity is Severity.OK
    # The limit is 20 lines of 200 s, which is 67 minutes.
    assert running.judge("hang", after=minutes(60)).severity is Severity.OK
    assert running.judge("hang", after=minutes(10)).severity is Severity.CRITICAL


def test_long_evaluation_is_learnt(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 600)
    for _ in range(4):  # a pause of 12 minutes without a line
        assert running.judge("hang", after=minutes(3)).severity is Severity.OK
    running.steps(600, 1200)
    running.judge("hang", after=TICK)
    for _ in range(2):
        running.steps(1200, 1210)
        running.judge("hang", after=minutes(1))
    assert running.judge("hang", after=minutes(14)).severity is Severity.OK
    assert running.judge("hang", after=minutes(30)).severity is Severity.CRITICAL


def test_day_without_cycles_is_not_learnt(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=TICK)
    running.steps(50, 100)
    running.judge("hang", after=timedelta(days=1))
    assert running.judge("hang", after=minutes(16)).severity is Severity.CRITICAL


def test_growing_checkpoint_is_progress(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=TICK)
    (running.run.checkpoints / "step50").mkdir()
    for shard in range(5):
        (running.run.checkpoints / f"step50/{shard}.pt").write_bytes(b"x")
        assert running.judge("hang", after=minutes(14)).severity is Severity.OK
    assert running.judge("hang", after=minutes(60)).severity is Severity.CRITICAL


def test_lines_without_steps_are_no_progress(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=minutes(1))
    for _ in range(3):
        running.write_log("[rank 3] Watchdog caught collective operation timeout", "PULSE: gpt is running")
        finding = running.judge("hang", after=minutes(6))
    assert finding.severity is Severity.CRITICAL


def test_hang_minutes_apply_to_steps_only(running: Bench, minutes: Minutes) -> None:
    running.config = {"hang_minutes": 2, "stacks_seconds": 0}
    write_heartbeat(running, Phase.SAVE, limit_s=3600)
    assert running.judge("hang", after=minutes(30)).severity is Severity.OK
    write_heartbeat(running, Phase.TRAIN, limit_s=3600)
    assert running.judge("hang", after=minutes(3)).severity is Severity.CRITICAL


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING])
def test_task_that_is_not_running_does_not_hang(running: Bench, state: JobState, minutes: Minutes) -> None:
    running.steps(1, 50)
    running.judge("hang")
    running.jobs = (job(state=state, start=T0),)
    assert running.judge("hang", after=minutes(600)).summary == "gpt: no task runs"


def test_resumed_task_does_not_hang(running: Bench, minutes: Minutes) -> None:
    running.judge("hang")
    running.steps(1, 50)
    running.judge("hang", after=minutes(1))
    running.jobs = (job(state=JobState.SUSPENDED, start=T0),)
    running.judge("hang", after=minutes(1))
    running.start_task(since=T0)
    running.write_log("resumed")
    assert running.judge("hang", after=timedelta(hours=5)).severity is Severity.OK


def test_first_cycle_uses_the_age_of_the_log(running: Bench) -> None:
    """Without a writable memory every cycle is the first; a dead run must be found all the same."""
    running.steps(1, 50)
    running.clock.time += timedelta(days=400)  # the log was written at the real time
    assert running.judge("hang").severity is Severity.CRITICAL


def test_new_attempt_ignores_earlier_lines(running: Bench, minutes: Minutes) -> None:
    running.steps(1, 50)
    running.start_task(since=running.clock.time + minutes(5))
    running.judge("hang", after=minutes(6))
    assert running.judge("hang", after=minutes(50)).severity is Severity.OK


def test_stacks_are_requested_once_and_summarized(running: Bench, minutes: Minutes) -> None:
    running.config = {"stacks_seconds": 1}
    write_heartbeat(running, Phase.TRAIN, limit_s=60)
    running.judge("hang")
    finding = running.judge("hang", after=minutes(2))
    assert running.attempt.stacks_request.exists()
    assert finding.evidence[0] == "2 of 2 ranks did not answer: 0-1"
    running.attempt.stacks_request.unlink()
    assert running.judge("hang", after=minutes(2)).evidence == finding.evidence
    assert not running.attempt.stacks_request.exists()


def test_dry_run_requests_no_stacks(running: Bench, minutes: Minutes) -> None:
    running.acts = False
    write_heartbeat(running, Phase.TRAIN, limit_s=60)
    assert running.judge("hang", after=minutes(2)).severity is Severity.CRITICAL
    assert not running.attempt.stacks_request.exists()


DUMP = read_table(__file__, "dump")


def test_ranks_are_grouped_by_stack_rarest_first(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"node-a-{rank}.txt").write_text(DUMP)
    (tmp_path / "node-a-2.txt").write_text(DUMP.replace("in barrier", "in read").replace("2420", "7"))
    assert summarize_stacks(tmp_path, ranks=5) == [
        "1 of 5 ranks did not answer: 4",
        "1 rank (node node-a: 2) in read at loop.py:91",
        "3 ranks (node node-a: 0-1,3) in barrier at loop.py:91",
        f"stacks: {tmp_path}",
    ]


@pytest.mark.parametrize("dump", ["", "Thread 0x", "\x00\xff", "Thread 0x1 (most recent call first):\n"])
def test_truncated_dump_has_no_location(tmp_path: Path, dump: str) -> None:
    (tmp_path / "n1-0.txt").write_text(dump)
    assert summarize_stacks(tmp_path, ranks=1)[0] == "1 rank (node n1: 0) without a stack"


HOMES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def describe(answered: set[int], *states: tuple[int, str], reached: tuple[str, ...] = ("n1", "n2")) -> list[str]:
    rows = [
        Stack(node=HOMES[rank], rank=rank, pid=100 + rank, state=state, kernel_function="nfs_wait")
        for rank, state in states
    ]
    return render_silent(answered, RankProcesses(ranks=4, homes=HOMES, states=rows, reached=reached))


def test_all_answers_name_nobody() -> None:
    assert describe({0, 1, 2, 3}, (0, "S"), (1, "S"), (2, "R"), (3, "S")) == []


def test_silent_rank_is_named_with_its_state() -> None:
    assert describe({0, 1, 3}, (0, "S"), (1, "S"), (2, "T"), (3, "S")) == [
        "rank 2 on n2 does not answer: stopped by a signal (T)"
    ]


def test_ranks_are_grouped_by_node_with_reasons_first() -> None:
    assert describe({0}, (0, "S"), (1, "S"), (2, "D")) == [
        "rank 2 on n2 does not answer: hangs in the kernel (D) in nfs_wait",
        "rank 3 on n2 does not answer: the process is gone",
        "rank 1 on n1 does not answer",
    ]


def test_foreign_trainer_names_only_ranks_that_cannot_run() -> None:
    assert describe(set(), (0, "S"), (1, "S"), (2, "T")) == [
        "rank 2 on n2 does not answer: stopped by a signal (T)",
        "rank 3 on n2 does not answer: the process is gone",
    ]


def test_unreached_node_and_unnamed_ranks_are_not_called_gone() -> None:
    assert describe(set(), (0, "S"), (1, "S"), reached=("n1",)) == []
    assert describe(set()) == []


def test_states_are_read_beside_the_stacks(tmp_path: Path) -> None:
    text = "== node n1 rank 3 pid 77 state D in nfs_wait\nThread 77 (idle)\n== node n2 rank 4 pid 78 state S in 0\n"
    assert [(row.rank, row.state, row.kernel_function) for row in parse(text.encode())] == [
        (3, "D", "nfs_wait"),
        (4, "S", ""),
    ]
    (tmp_path / "n1-3.txt").write_text("stack")
    (tmp_path / FILE_NAME).write_text(text)
    assert list_answered(tmp_path) == {3}


def test_alert_and_stacks_describe_a_rank_in_the_same_words() -> None:
    for state in sorted(CANNOT_TRAIN):
        [line] = describe({0, 1, 3}, (2, state), reached=())
        [group] = group_stacks([Stack(node="n2", rank=2, state=state)])
        assert line.partition(": ")[2].removesuffix(" in nfs_wait") == group.describe().rpartition(": ")[2]
    [line] = describe({0, 1, 3}, (0, "S"), (1, "S"), (3, "S"))
    [group] = group_stacks([Stack(rank=2, state=GONE)])
    assert line.partition(": ")[2] == group.describe().rpartition(": ")[2]
