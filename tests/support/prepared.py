"""A process that has imported torch, DeepSpeed and the trainer, and from which ranks are forked.

The imports take 4 s of a core in every rank, and the ranks of the tests are some hundred. A forked rank runs the same
program with its own environment, directory and log; tests/integration/trainer/test_trackers.py and
tests/integration/slurm start real ones.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Server:
    """The client's side. Requests and answers are lines of JSON."""

    def __init__(self) -> None:
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-P", "-m", __name__]
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._waiting, self._buffer = [], ""
        self.codes: dict[int, int] = {}
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def start(self, program: str, arguments: list[str], *, env: dict[str, str], cwd: Path, log: Path) -> Forked:
        """Run a module or a script, as `python -m` or `python` would; append its output to `log`."""
        request = {"program": program, "arguments": arguments, "env": env, "cwd": str(cwd), "log": str(log)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        while not self._waiting:
            self.read(timeout=250)
        return Forked(self, self._waiting.pop())

    def read(self, *, timeout: float) -> None:
        """Take the answers that arrive within `timeout` seconds, at least those that are there."""
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            return
        data = os.read(self._process.stdout.fileno(), 1 << 16).decode()
        assert data, f"the process that ranks are forked from has ended: {self._process.wait()}"
        *lines, self._buffer = (self._buffer + data).split("\n")
        for answer in map(json.loads, lines):
            if "code" in answer:
                self.codes[answer["pid"]] = answer["code"]
            else:
                self._waiting.append(answer["pid"])


class Forked:
    """A forked program, with what the tests use of subprocess.Popen."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server, self.pid = server, pid

    def poll(self) -> int | None:
        self._server.read(timeout=0)
        return self._server.codes.get(self.pid)

    def wait(self, timeout: float = 600) -> int:
        end = time.monotonic() + timeout
        while self.pid not in self._server.codes:
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("a forked program", timeout)
            self._server.read(timeout=left)
        return self._server.codes[self.pid]

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


server = functools.cache(Server)


def run(program: str) -> None:
    """Run a module or a script as the main program of this process."""
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def serve() -> str:
    """Fork a program for every request; return the program in every fork, and nothing at the end of requests."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    requests = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 16)
            reap()
        if 0 in ready:
            data = os.read(0, 1 << 20)
            if not data:
                return ""
            *lines, requests = (requests + data).split(b"\n")
            for line in lines:
                if program := fork(json.loads(line), [woken, wake]):
                    return program


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        answer({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def answer(fields: dict[str, int]) -> None:
    os.write(1, f"{json.dumps(fields)}\n".encode())


def fork(request: dict, pipes: list[int]) -> str:
    """Return the program in the fork, with its environment, directory and log; nothing in this process."""
    if pid := os.fork():
        answer({"pid": pid})
        return ""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for place, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(place, number)
    for pipe in pipes:
        os.close(pipe)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["program"], *request["arguments"]]
    return request["program"]


if __name__ == "__main__":
    from opsctl.trainer.process_groups import choose_accelerator

    choose_accelerator()
    from opsctl.trainer import loop, nan_search  # noqa: F401 - DeepSpeed looks for its accelerator when it is imported

    if program := serve():
        run(program)
