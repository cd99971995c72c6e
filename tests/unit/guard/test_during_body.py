"""What the guard does beside the body waits for the first step of the ranks."""

import os
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from opsctl.base.ports import Completed
from opsctl.guard.during_body import LOWEST_PRIORITY, MAX_WAIT_S, DuringBody
from opsctl.guard.supervisor import Supervisor
from opsctl.state.events import Submitting
from tests.support.finalized_trains import QueuedTrain, make_node_care

STEP = " iteration       12/     100 | lm loss: 2.5 |\n"


@dataclass
class RecordingRunner:
    """Records the programs that are asked for, with the log at that moment and the priority of the thread."""

    train: QueuedTrain
    programs: list[tuple[str, float, int]] = field(default_factory=list)

    def run(
        self, argv: list[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.programs.append((argv[0], self.train.clock.monotonic(), priority))
        return Completed(argv=tuple(argv), code=0, out="text\n", err="")


@dataclass
class ClockWithEvents:
    """A clock on which something happens while the code under test sleeps."""

    train: QueuedTrain
    events: Iterator[object]

    def now(self) -> object:
        return self.train.clock.now()

    def monotonic(self) -> float:
        return self.train.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.train.clock.sleep(seconds)
        next(self.events, None)


@pytest.fixture
def beside(train: QueuedTrain) -> DuringBody:
    attempt = train.start_attempt()
    runner = RecordingRunner(train)
    return DuringBody(run=train.run, attempt=attempt, runner=runner, env={}, clock=train.clock)  # type: ignore[arg-type]  # a list is a sequence


def work(beside: DuringBody) -> list[tuple[str, float, int]]:
    """Work in a thread, because the work lowers the priority of its thread."""
    thread = threading.Thread(target=beside.work)
    thread.start()
    thread.join(250)
    return beside.runner.programs  # type: ignore[attr-defined]  # the recording runner


def test_programs_and_news_of_an_earlier_attempt_wait_for_the_first_step(
    train: QueuedTrain, beside: DuringBody
) -> None:
    began, sent = train.clock.monotonic(), queue.Queue[float]()
    beside.send_alerts = lambda: sent.put(train.clock.monotonic())
    beside.has_news = True

    def log_a_step() -> Iterator[None]:
        yield from [None] * 6
        train.run.main_log.write_text(STEP)
        yield

    beside.clock = ClockWithEvents(train, log_a_step())  # type: ignore[assignment]  # its time is that of the fake clock
    programs = work(beside)
    assert {program for program, _, _ in programs} >= {"git"}
    assert {at_s - began for _, at_s, _ in programs} == {7}
    assert {priority for _, _, priority in programs} == {LOWEST_PRIORITY}
    assert (beside.attempt.repro / "packages.txt").exists()
    assert (sent.get(timeout=250) - began, beside.has_news) == (7, False)


def test_unknown_steps_are_waited_for_a_minute(train: QueuedTrain, beside: DuringBody) -> None:
    began = train.clock.monotonic()
    assert min(at_s for _, at_s, _ in work(beside)) - began == pytest.approx(MAX_WAIT_S, abs=1)


def test_ended_body_starts_no_program(train: QueuedTrain, beside: DuringBody) -> None:
    def end() -> Iterator[None]:
        yield
        beside.is_over = True
        yield

    beside.clock = ClockWithEvents(train, end())  # type: ignore[assignment]  # as above
    assert work(beside) == []
    assert sorted(path.name for path in beside.attempt.repro.iterdir()) == ["env.json", "modules.txt"]


def test_news_is_left_to_the_guard_at_the_end(beside: DuringBody) -> None:
    sent = queue.Queue[None]()
    beside.send_alerts, beside.has_news, beside.is_over = lambda: sent.put(None), True, True
    work(beside)
    assert beside.has_news
    assert sent.empty()


def test_news_outlasts_a_look_without_news(train: QueuedTrain) -> None:
    train.end_body(train.start_attempt("12_1.0"), 1)
    train.arrays.journal.append(Submitting(nonce="n2", tasks=1, after="12"))  # unknown until Slurm answers
    env = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"}
    guard = Supervisor(
        arrays=train.arrays,
        rules=train.rules,
        runner=None,
        env=env,
        check_trusted=lambda: None,
        make_care=lambda: make_node_care(train),
    )
    train.start_attempt(guard.attempt.name)
    guard._prepare()
    assert guard.during.has_news
    train.queue.breaks_after = len(train.queue.calls)
    guard._work_rarely()
    assert guard.during.has_news
