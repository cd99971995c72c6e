"""Silent ranks are named first, with the states of their real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from opsctl.diagnosis.hang_cause import judge_hang
from opsctl.diagnosis.py_spy import PySpyDump, dump_stacks
from opsctl.diagnosis.stack_dumps import GONE, NO_STACK, Frame, Stack, add_processes, parse, render_stacks
from opsctl.host.system import SystemRunner
from opsctl.nodes.remote.fanout import Fanout, Local

HERE = Fanout(shells=[Local(runner=SystemRunner(), names=["n1"])])
WAITS = (Frame("all_reduce", "train.py", 9),)


class Ranks:
    """Ranks of one attempt, started as srun does: below the rank wrapper."""

    def __init__(self, logs: Path) -> None:
        self.attempt = f"{logs.name}_{os.getpid()}.0"
        self.logs = logs
        self.wrappers: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, *program: str) -> psutil.Process:
        """Return the process of the rank's program, which is of Python unless another is given."""
        command = [sys.executable, "-P", "-m", "opsctl.guard.rank", "--logs", str(self.logs), "--"]
        env = {**os.environ, "SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "TRAIN_ATTEMPT": self.attempt}
        argv = program or (sys.executable, "-c", "import time; time.sleep(600)")
        wrapper = subprocess.Popen([*command, *argv], env=env, stdout=subprocess.DEVNULL)
        self.wrappers.append(wrapper)
        deadline = time.monotonic() + 250
        while time.monotonic() < deadline:
            for process in psutil.Process(wrapper.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[1:2] == [argv[1]]:
                        return process
            time.sleep(0.05)
        raise TimeoutError("the rank did not start")

    def end(self) -> None:
        for wrapper in self.wrappers:
            for process in [*psutil.Process(wrapper.pid).children(recursive=True), psutil.Process(wrapper.pid)]:
                with suppress(psutil.Error):
                    process.kill()
            wrapper.wait()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    started.end()


def inspect(attempt: str, *answering: int, ranks: int) -> tuple[list[Stack], PySpyDump]:
    """Return the stacks of a hang in which `answering` ranks answered and the others did not."""
    listing = dump_stacks("", attempt, ["n1"], HERE)
    answers = [Stack(node="n1", rank=rank, frames=WAITS) for rank in answering]
    processes = parse(listing.text.encode())
    return add_processes(answers, processes, ranks=ranks, is_complete=listing.is_complete), listing


def wait_for_status(process: psutil.Process, status: str) -> None:
    deadline = time.monotonic() + 250
    while process.status() != status:
        assert time.monotonic() < deadline, process
        time.sleep(0.01)


def test_stopped_dead_and_missing_ranks_differ(ranks: Ranks) -> None:
    ranks.start(0)
    stopped, zombie = ranks.start(1), ranks.start(2)
    stopped.send_signal(signal.SIGSTOP)
    keeper = zombie.parent()
    assert keeper
    keeper.send_signal(signal.SIGSTOP)
    wait_for_status(keeper, psutil.STATUS_STOPPED)  # else the parent collects its child
    zombie.kill()
    wait_for_status(zombie, psutil.STATUS_ZOMBIE)
    stacks, listing = inspect(ranks.attempt, 0, ranks=4)
    assert listing.problems == ()
    assert {stack.rank: stack.state for stack in stacks} == {0: "S", 1: "T", 2: "Z", 3: GONE}
    assert render_stacks(stacks, ranks=4) == [
        f"1 rank (node n1: 2) {NO_STACK}: a zombie (Z)",
        f"1 rank (node n1: 1) {NO_STACK}: stopped by a signal (T)",
        f"1 rank (3) {NO_STACK}: the process is gone",
        "1 rank (node n1: 0) in all_reduce at train.py:9",
    ]
    assert {stack.pid for stack in stacks} >= {stopped.pid, zombie.pid}


def test_rank_of_another_program_is_not_gone(ranks: Ranks) -> None:
    ranks.start(0, "sleep", "600")
    stacks, listing = inspect(ranks.attempt, ranks=1)
    assert render_stacks(stacks, ranks=1) == ["1 of 1 ranks did not answer: 0"]
    assert listing.problems == ("n1: no Python process of a rank that this user may inspect",)


def test_helper_of_a_python_rank_hides_no_gone_rank(ranks: Ranks) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    process = ranks.start(0, sys.executable, "-c", code)
    deadline = time.monotonic() + 250
    while not process.children():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stacks, _ = inspect(ranks.attempt, 0, ranks=2)
    assert {stack.rank: stack.state for stack in stacks} == {0: "S", 1: GONE}


def test_stopped_rank_in_a_collective_is_odd(ranks: Ranks) -> None:
    """py-spy reads the stack of a stopped rank, which waits at the same place as all others."""
    ranks.start(1).send_signal(signal.SIGSTOP)
    stacks, _ = inspect(ranks.attempt, 0, 1, 2, 3, ranks=4)
    assert render_stacks(stacks, ranks=4) == [
        "1 rank (node n1: 1) in all_reduce at train.py:9, stopped by a signal (T)",
        "3 ranks (node n1: 0,2-3) in all_reduce at train.py:9",
    ]
    diagnosis = judge_hang(stacks, ranks=4, homes={})
    assert (diagnosis.rank, diagnosis.node) == (1, "n1")
    silent = [replace(stack, frames=()) if stack.rank == 1 else stack for stack in stacks]
    assert "1 rank (node n1: 1) not answering: stopped by a signal (T)" in judge_hang(silent, ranks=4, homes={}).says


def test_py_spy_prints_the_state_as_well(ranks: Ranks) -> None:
    ranks.start(0).send_signal(signal.SIGSTOP)
    [stack] = parse(dump_stacks("true", ranks.attempt, ["n1"], HERE).text.encode())
    assert (stack.rank, stack.state, stack.is_silent) == (0, "T", True)


def test_py_spy_is_proposed_only_where_permitted(ranks: Ranks, tmp_path: Path) -> None:
    ranks.start(0)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "py-spy").touch(mode=0o755)
    with_py_spy = SystemRunner(env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    listing = dump_stacks("", ranks.attempt, ["n1"], Fanout(shells=[Local(runner=with_py_spy, names=["n1"])]))
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_permitted = os.getuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"
    assert listing.may_answer is is_permitted
    without = SystemRunner(env={"PATH": "/usr/bin:/bin"})
    assert not dump_stacks("", ranks.attempt, ["n1"], Fanout(shells=[Local(runner=without, names=["n1"])])).may_answer


def test_rank_on_an_unreached_node_is_not_gone(ranks: Ranks) -> None:
    ranks.start(0)
    listing = dump_stacks("", ranks.attempt, ["n1", "n2"], HERE)
    stacks = add_processes([], parse(listing.text.encode()), ranks=2, is_complete=listing.is_complete)
    assert [(stack.rank, stack.state) for stack in stacks] == [(0, "S")]
    assert render_stacks(stacks, ranks=2)[0] == "1 of 2 ranks did not answer: 1"
