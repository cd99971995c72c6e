"""The real clock and real programs: the only module that reads the time, sleeps or starts a process."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.errors import MissingProgram
from opsctl.host.processes import die_with_parent
from opsctl.ports import Completed, Flooded, TimedOut

MOST_OUTPUT = 256 << 20
"""Bytes that a program may print: ten times the queue of the largest cluster, and less than fills a login node."""
GONE_SECONDS = 2.0
"""What a killed process may take to be gone; one that hangs in the kernel is left behind."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class SystemRunner:
    """Runs programs of this machine, with `env` laid over the environment of this process."""

    env: Mapping[str, str] | None = None

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        laid = {**os.environ, **(self.env or {}), **(env or {})}
        full = {name: value for name, value in laid.items() if value is not None}
        try:
            # A group of its own: when it is late, what it started is ended with it, and Ctrl-C reaches only us.
            process = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=full,
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise _missing(argv[0], error) from error
        until = time.monotonic() + timeout
        try:
            out, err = _exchange(process, stdin.encode(errors="surrogateescape"), until)
            code = process.wait(max(0.0, until - time.monotonic()))
        except OverflowError as error:
            raise Flooded(argv, MOST_OUTPUT) from error
        except subprocess.TimeoutExpired as error:
            raise TimedOut(argv, timeout) from error
        finally:
            _let_go(process)
        return Completed(argv=tuple(argv), code=code, out=_text(out), err=_text(err))


def _exchange(process: subprocess.Popen[bytes], data: bytes, until: float) -> tuple[bytearray, bytearray]:
    """Give it its input and take what it prints, until it has closed both. Not `communicate`, which keeps whatever is
    printed. Raises TimeoutExpired, and OverflowError for more than MOST_OUTPUT."""
    assert process.stdin and process.stdout and process.stderr
    out, err, rest = bytearray(), bytearray(), memoryview(data)
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdin, selectors.EVENT_WRITE)
        waiting.register(process.stdout, selectors.EVENT_READ, out)
        waiting.register(process.stderr, selectors.EVENT_READ, err)
        while waiting.get_map():
            if not (ready := waiting.select(max(0.0, until - time.monotonic()))) and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, 0)
            for pipe, _ in ready:
                if pipe.data is None:
                    rest = _give(pipe.fd, rest)
                    is_over = not rest
                else:
                    is_over = not (chunk := os.read(pipe.fd, 1 << 16))
                    pipe.data.extend(chunk)
                if is_over:
                    waiting.unregister(pipe.fileobj)
                    pipe.fileobj.close()  # type: ignore[union-attr]  # a pipe, not a number
            if len(out) + len(err) > MOST_OUTPUT:
                raise OverflowError
    return out, err


def _give(handle: int, rest: memoryview) -> memoryview:
    """What is left of it; nothing for a program that does not want to hear it."""
    try:
        return rest[os.write(handle, rest[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return rest[:0]


def _text(data: bytearray) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of it, and close its pipes: who left its group may hold their other ends for ever."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GONE_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A program of which not more was kept than was asked for."""

    code: int | None
    """None if it was late and was ended."""
    output: bytes
    """What it printed, stdout and stderr as they came; of much, the beginning and the end."""


def run_bounded(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float, keep: int, pulse: Callable[[], None],
    grace: float = 3.0,
) -> Bounded:  # fmt: skip
    """Run a program that may hang, print without end, or leave processes behind, with exactly `env`.

    `pulse` is called again and again meanwhile. What is left of its process group is told to end, and killed after
    `grace` seconds. Raises OSError if it cannot be started.
    """
    output_ends = _OutputEnds(keep)
    with contextlib.ExitStack() as stack:
        with _signals_wait():
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(env),
                cwd=cwd, process_group=0,
            )  # fmt: skip
            assert process.stdout is not None
            stack.callback(_wind_up, process, process.stdout.fileno(), output_ends, grace)
        late = time.monotonic() + timeout
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None and time.monotonic() < late:
            output_ends.read(process.stdout.fileno(), wait=min(0.1, max(0.0, late - time.monotonic())))
            pulse()
        in_time = process.poll() is not None
    return Bounded(code=process.returncode if in_time else None, output=output_ends.text())


def _wind_up(process: subprocess.Popen[bytes], out: int, output_ends: _OutputEnds, grace: float) -> None:
    _end_group(process, grace=grace)
    os.set_blocking(out, False)
    output_ends.read(out, wait=0)
    if process.stdout:
        process.stdout.close()


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let TERM and INT wait until the end of this block: one that raised between the birth of a process and our
    knowing of it would leave an orphan. Not a signal mask, for the process would inherit it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in caught:
            signal.raise_signal(late)


class _OutputEnds:
    """The first and the last half of `size` bytes of a stream of any length."""

    def __init__(self, size: int) -> None:
        self.half = size // 2
        self.first, self.last = bytearray(), bytearray()
        self.left_out = 0
        self.is_open = True

    def read(self, handle: int, *, wait: float) -> None:
        """Whatever there is within `wait` seconds, at most a few pipes full."""
        if not self.is_open:
            time.sleep(min(wait, 0.05))
            return
        select.select([handle], [], [], wait)
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                chunk = os.read(handle, 1 << 16)
                self.is_open = bool(chunk)
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = max(0, self.half - len(self.first))
        self.first += chunk[:room]
        self.last += chunk[room:]
        if len(self.last) > 2 * self.half:
            self.left_out += len(self.last) - self.half
            del self.last[: -self.half]

    def text(self) -> bytes:
        if len(self.last) > self.half:
            self.left_out += len(self.last) - self.half
            del self.last[: -self.half]
        gap = f"\n[... {self.left_out} bytes left out ...]\n".encode() if self.left_out else b""
        return bytes(self.first + gap + self.last)


def _end_group(process: subprocess.Popen[bytes], *, grace: float) -> None:
    """TERM to the whole group, and KILL to what is left of it when its leader is gone or `grace` seconds are over."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)


def _missing(program: str, error: OSError) -> MissingProgram:
    is_absent = isinstance(error, FileNotFoundError) and "/" not in program
    return MissingProgram(f"{program}: {'is not on PATH' if is_absent else error.strerror}", hint="opsctl doctor")


def spawn(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that outlives us, in a session of its own, its output appended to `log`."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o644), "ab") as out:
            return subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **(env or {})},
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise _missing(argv[0], error) from error


def run_attached(argv: Sequence[str], *, env: Mapping[str, str]) -> int:
    """Run a program on this terminal, with exactly `env`, for as long as it takes; its exit code as a shell tells it.

    Ctrl-C is the program's to answer. If we are ended by TERM or HUP, or killed, it is killed.
    """
    try:
        process = subprocess.Popen(list(argv), env=dict(env), preexec_fn=lambda: die_with_parent(signal.SIGKILL))  # noqa: PLW1509 (one prctl; no threads yet)
    except OSError as error:
        raise _missing(argv[0], error) from error
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()
    return code if code >= 0 else 128 - code


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def replace_process(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Become another program. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(argv[0], list(argv), {**os.environ, **(env or {})})


def user_name(uid: int) -> str:
    """The name of a user, or the number where it has no name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def hostname() -> str:
    """This machine's own name. A Slurm node is named by $SLURMD_NODENAME instead: several may share one machine."""
    return os.uname().nodename
