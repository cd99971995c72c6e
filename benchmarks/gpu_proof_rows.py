"""The rows of benchmarks/gpu_proof.py, and the processes and limits with which it gets them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_LOG_BYTES = 1 << 20
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|\bMemoryError\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `is_met` is None for a figure without an aim."""

    name: str
    figure: str
    aim: str = ""
    is_met: bool | None = None
    is_proof: bool = False
    """Whether a miss makes the program fail: numbers that must be right, unlike speed."""

    @property
    def outcome(self) -> str:
        return {True: "met", False: "MISSED", None: ""}[self.is_met]


class NotMeasured(Exception):
    """A measurement that this machine or the time did not allow: nothing is proved, and nothing is refuted."""


class Failed(Exception):
    """A measurement that ended with an error."""


class OutOfTime(NotMeasured):
    """A measurement that did not begin or end in its time."""


def run_group(argv: Sequence[str], env: Mapping[str, str], log: Path, *, timeout_s: float) -> tuple[int, str]:
    """Run a program in a process group of its own, of which nothing is left afterwards. Raises OutOfTime.

    The output goes to a file: a pipe would stay open for as long as any process of the group lives.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise OutOfTime(f"not done after {timeout_s:.0f} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)  # a driver may keep a process beyond any signal
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - MAX_LOG_BYTES, 0))
        return code, file.read().decode(errors="replace")


def refuse_lack_of_memory(code: int, log: str) -> None:
    """Raise NotMeasured if a process with this exit code and log ended for lack of memory, of a GPU or of the host."""
    if code and _OUT_OF_MEMORY.search(log):
        raise NotMeasured([line.strip() for line in log.splitlines() if _OUT_OF_MEMORY.search(line)][-1])
    if code == -signal.SIGKILL:
        raise NotMeasured("killed by the system, which does so for lack of host memory")


@contextlib.contextmanager
def _time_limit(seconds: float, *, of: float) -> Iterator[None]:
    """Raise OutOfTime inside the block after `seconds`, whatever it is waiting for."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"not done after {of:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def within(limit_s: float, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield `rows`. Raises OutOfTime if they take longer altogether, without the time of who asks for them."""
    left = limit_s
    while True:
        started = time.monotonic()
        with _time_limit(left, of=limit_s):
            row = next(rows, None)
        left -= time.monotonic() - started
        if row is None:
            return
        yield row


def last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def ask_torch(code: str) -> tuple[int, str]:
    """Return the exit code and the output of Python code, from another process: drivers hang and crash."""
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as directory:
        argv = [sys.executable, "-P", "-c", f"import torch; {code}"]
        return run_group(argv, os.environ, Path(directory) / "log", timeout_s=120)


def ask_gpu_memory() -> int:
    """Return the bytes of the GPU. Raises NotMeasured, Failed."""
    code, log = ask_torch("print(torch.cuda.mem_get_info()[1])")
    refuse_lack_of_memory(code, log)
    if code:
        raise Failed(last_line(log))
    return int(last_line(log))


def missing_gpu() -> str:
    """Return why nothing can be proved here; empty with a GPU."""
    try:
        code, log = ask_torch("print(torch.version.cuda or torch.version.hip or '', torch.cuda.is_available())")
    except OutOfTime as error:
        return f"torch does not answer: {error}"
    if code:
        return f"torch cannot be imported: {last_line(log)}"
    build, _, available = last_line(log).rpartition(" ")
    if available == "True":
        return ""
    if build:
        return f"this torch was built for {build}, and no GPU answers"
    return "this torch was built for CPUs only; make gpu GPU_PYTHON=PYTHON takes another environment's"


class Table:
    """Prints rows as they come, and appends them to a file as JSON Lines."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self._path, self._as_json, self._count, self.is_refuted = path, as_json, 0, False
        with self._complain():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        if not as_json:
            self._print("what", "figure", "aim", "")
            self._print("---", "---:", "---", "---")

    def add(self, row: Row) -> None:
        self._count += 1
        self.is_refuted |= row.is_proof and row.is_met is False
        line = json.dumps({**asdict(row), "outcome": row.outcome})
        if self._as_json:
            print(f"{'[' if self._count == 1 else ','}\n {line}", end="", flush=True)
        else:
            self._print(row.name, row.figure, row.aim, row.outcome)
        with self._complain(), self._path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        if self._as_json:
            print("\n]" if self._count else "[]", flush=True)

    def _print(self, *cells: str) -> None:
        print("| {:60} | {:60} | {:14} | {:6} |".format(*cells), flush=True)

    @contextlib.contextmanager
    def _complain(self) -> Iterator[None]:
        """Print why the file cannot be written; the printed table goes on."""
        try:
            yield
        except OSError as error:
            print(f"{self._path} cannot be written: {error}", file=sys.stderr)
