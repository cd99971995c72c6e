"""`sandbox down` with as many processes as fifty trains."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.host.processes import ProcessId, find_processes
from opsctl.host.system import SystemClock
from opsctl.sandbox.members import MARKER, EndedProcesses, end_members, find_members
from tests.support.slurms import wait_until

COUNT = 570
NESTED = "for i in 1 2 3 4 5 6 7 8; do sleep {0} & done; wait"
"""A process with eight below it."""


class CountingClock(SystemClock):
    slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        super().sleep(seconds)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A function that starts nested processes of a sandbox and returns its run directory.

    `trap` is the first shell line of the top processes.
    """
    tops: list[subprocess.Popen[bytes]] = []

    def start(count: int = COUNT, *, trap: str = "", run: Path = tmp_path / "run") -> Path:
        env = {**os.environ, MARKER: str(run)}
        script = f"{trap}{NESTED.format(f'6{os.getpid()}')}"
        for _ in range(count // 9):
            tops.append(subprocess.Popen(["sh", "-c", script], env=env, start_new_session=True))
        tops.extend(subprocess.Popen(["sleep", "600"], env=env) for _ in range(count % 9))
        wait_until(lambda: len(find_members(run, None)) == count)
        return run

    yield start
    for top in tops:
        if top.poll() is None:
            os.killpg(top.pid, signal.SIGKILL) if os.getpgid(top.pid) == top.pid else top.kill()
        top.wait()


def test_processes_are_found_in_one_pass_over_proc(crowd: Callable[..., Path]) -> None:
    run = crowd()
    opened: list[str] = []
    listening = [True]  # an audit hook cannot be removed
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if listening and event == "open" else None)
    processes = find_processes(lambda process: process.environment().get(MARKER) == str(run))
    listening.clear()
    of_proc = [path for path in opened if path.startswith("/proc/")]
    assert len(processes) == COUNT
    running = len(list(Path("/proc").glob("[0-9]*")))
    assert len(of_proc) <= 2 * running + 50, f"{len(of_proc)} files read for {running} processes"


def test_descendant_without_the_marker_is_found(crowd: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    pid_file = tmp_path / "pid"
    inner = f"env -i sh -c 'env -i sleep 600 & echo $! > {shlex.quote(str(pid_file))}; wait'"
    with subprocess.Popen(["sh", "-c", f"{inner}; true"], env={**os.environ, MARKER: str(run)}) as top:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
        sleeper = ProcessId.of(int(pid_file.read_text()))
        assert sleeper in find_members(run, None)
        assert end_members(run, None, SystemClock(), grace=0.2).remaining == ()
        top.wait(250)


def test_processes_are_ended_together(crowd: Callable[..., Path]) -> None:
    run = crowd()
    clock = CountingClock()
    ended = end_members(run, None, clock, grace=1)
    assert (ended.count, ended.remaining) == (COUNT, ())
    assert clock.slept_s < COUNT / 4, "one grace for all, not one each"
    assert find_members(run, None) == {}


class SlowClock(SystemClock):
    """A clock on which the whole deadline passes before the first signal, as on a machine that swaps."""

    def __init__(self) -> None:
        self.readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return super().monotonic() + (60 if self.readings > 1 else 0)


def test_deadline_counts_from_the_first_signal(crowd: Callable[..., Path]) -> None:
    run = crowd(18)
    ended = end_members(run, None, SlowClock(), grace=0.2)
    assert (ended.count, ended.remaining) == (18, ())


def test_processes_that_ignore_term_are_killed(crowd: Callable[..., Path]) -> None:
    run = crowd(18, trap="trap '' TERM; ")
    ended = end_members(run, None, SystemClock(), grace=0.2)
    assert (ended.count, ended.remaining) == (18, ())


def test_message_counts_remaining_processes() -> None:
    few = EndedProcesses(count=570, remaining=("sleep (7)",))
    assert few.describe_remaining() == "1 of 570 processes is still alive after SIGKILL: sleep (7)"
    many = EndedProcesses(count=570, remaining=tuple(f"sleep ({pid})" for pid in range(1, 8)))
    assert many.describe_remaining().endswith(": sleep (1), sleep (2), sleep (3), sleep (4), sleep (5) and 2 more")
    assert many.describe_remaining().startswith("7 of 570 processes are")
