"""The real clock and real programs: the only module that reads the time, sleeps or starts a process."""

import contextlib
import logging
import os
import pwd
import select
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.base.errors import MissingProgram
from opsctl.base.ports import Completed, Flooded, TimedOut
from opsctl.host.processes import die_with_parent, find_processes

log = logging.getLogger(__name__)
MAX_LOGGED_CHARS = 1000
"""Of a command line in the log: some carry a whole script."""
MAX_OUTPUT_BYTES = 256 << 20
"""Ten times the queue of the largest cluster, and far below the memory of a login node."""
MARK_VARIABLE = "OPSCTL_RUN_MARK"
"""Environment variable by which the descendants of a bounded run are found."""
KILL_WAIT_S = 2.0
"""The longest wait for a killed process to end. A process that hangs in the kernel is abandoned."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class SystemRunner:
    """Runs programs of this machine, with `env` added to the environment of this process."""

    env: Mapping[str, str] | None = None

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        merged = {**os.environ, **(self.env or {}), **(env or {})}
        try:
            # A separate process group: a timeout ends the children too, and Ctrl-C reaches only opsctl.
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={name: value for name, value in merged.items() if value is not None},
                process_group=0,
            )
        except OSError as error:
            raise _missing(argv[0], error) from error
        began = time.monotonic()
        until = began + timeout
        try:
            out, err = _exchange(process, stdin.encode(errors="surrogateescape"), until)
            code = process.wait(max(0.0, until - time.monotonic()))
        except OverflowError as error:
            raise Flooded(argv, MAX_OUTPUT_BYTES) from error
        except subprocess.TimeoutExpired as error:
            log.debug("%s: no answer within %g s", shlex.join(argv)[:MAX_LOGGED_CHARS], timeout)
            raise TimedOut(argv, timeout) from error
        finally:
            _abandon(process)
        completed = Completed(argv=tuple(argv), code=code, out=_text(out), err=_text(err))
        _log_completed(completed, time.monotonic() - began)
        return completed


def _log_completed(completed: Completed, seconds: float) -> None:
    """Log a program with its exit code and duration; of a failed program also the last line of its errors."""
    command = shlex.join(completed.argv)[:MAX_LOGGED_CHARS].encode(errors="backslashreplace").decode()
    error = completed.err.rstrip().rpartition("\n")[2] if completed.code else ""
    log.debug("%s: exit %d in %.3f s%s", command, completed.code, seconds, f": {error}" if error else "")


def _exchange(process: subprocess.Popen[bytes], data: bytes, until: float) -> tuple[bytearray, bytearray]:
    """Write `data` to the process and read its output until the process closes its pipes.

    `Popen.communicate` sets no limit to the output. Raises TimeoutExpired, and OverflowError for more than
    MAX_OUTPUT_BYTES.
    """
    assert process.stdin and process.stdout and process.stderr
    out, err, rest = bytearray(), bytearray(), memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, 0)
            for pipe, _ in ready:
                if pipe.data is None:
                    rest = _write_some(pipe.fd, rest)
                    is_over = not rest
                else:
                    chunk = os.read(pipe.fd, 1 << 16)
                    is_over = not chunk
                    pipe.data.extend(chunk)
                if is_over:
                    selector.unregister(pipe.fileobj)
                    pipe.fileobj.close()  # type: ignore[union-attr]  # a pipe, not a number
            if len(out) + len(err) > MAX_OUTPUT_BYTES:
                raise OverflowError
    return out, err


def _write_some(handle: int, rest: memoryview) -> memoryview:
    """Write a part of `rest` and return the remainder; empty if the program has closed its input."""
    try:
        return rest[os.write(handle, rest[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return rest[:0]


def _text(data: bytearray) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group and close the pipes: a child outside the group may keep the pipes open for ever."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_WAIT_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """The result of a program with a bounded output."""

    code: int | None
    """None after a timeout."""
    output: bytes
    """stdout and stderr together; of a long output, the beginning and the end."""


def run_bounded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    keep: int,
    pulse: Callable[[], None],
    grace: float = 3.0,
) -> Bounded:
    """Run a program that may hang, print without end, or leave processes behind, with `env` and a mark of the run.

    Keeps `keep` bytes of the output. Calls `pulse` several times a second. Sends TERM to the remaining process group
    and KILL after `grace` seconds; after a timeout also to descendants in other sessions. Raises OSError if the program
    cannot be started.
    """
    output_ends = _OutputEnds(keep)
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        with _defer_signals():
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**env, MARK_VARIABLE: mark},
                cwd=cwd,
                process_group=0,
            )
            assert process.stdout is not None
            stack.callback(_wind_up, process, process.stdout.fileno(), output_ends, grace, mark)
        deadline = time.monotonic() + timeout
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None and time.monotonic() < deadline:
            output_ends.read(process.stdout.fileno(), wait=min(0.1, max(0.0, deadline - time.monotonic())))
            pulse()
        in_time = process.poll() is not None
    return Bounded(code=process.returncode if in_time else None, output=output_ends.text())


def _wind_up(process: subprocess.Popen[bytes], out: int, output_ends: "_OutputEnds", grace: float, mark: str) -> None:
    """End the process group, of a late program also every descendant, and read the rest of the output."""
    is_late = process.poll() is None
    _end_group(process, grace=grace)
    if is_late:
        _end_marked(mark, grace=grace)
    os.set_blocking(out, False)
    output_ends.read(out, wait=0)
    if process.stdout:
        process.stdout.close()


def _end_marked(mark: str, *, grace: float) -> None:
    """Send TERM, then KILL after `grace` seconds, to the processes that inherited `mark`, in any session."""
    processes = find_processes(lambda process: process.environment().get(MARK_VARIABLE) == mark)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            process.send(number)
        until = time.monotonic() + grace
        while any(process.is_alive for process in processes) and time.monotonic() < until:
            time.sleep(0.05)


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Delay TERM and INT to the end of this block: an exception right after fork would leave an orphan process.

    A signal mask would not do, because the new process would inherit the mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run only in the main thread
        return
    deferred: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: deferred.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in deferred:
            signal.raise_signal(late)


class _OutputEnds:
    """The beginning and the end of a stream, `size` bytes together."""

    def __init__(self, size: int) -> None:
        self.half = size // 2
        self.first, self.last = bytearray(), bytearray()
        self.left_out = 0
        self.is_open = True

    def read(self, handle: int, *, wait: float) -> None:
        """Wait up to `wait` seconds for output, and read at most 1 MiB."""
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
        """Return the beginning and the end, with the number of bytes left out between them."""
        if len(self.last) > self.half:
            self.left_out += len(self.last) - self.half
            del self.last[: -self.half]
        gap = f"\n[... {self.left_out} bytes left out ...]\n".encode() if self.left_out else b""
        return bytes(self.first + gap + self.last)


def _end_group(process: subprocess.Popen[bytes], *, grace: float) -> None:
    """Send TERM to the process group, then KILL when the leader has ended or after `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)


def _missing(program: str, error: OSError) -> MissingProgram:
    is_absent = isinstance(error, FileNotFoundError) and "/" not in program
    return MissingProgram(f"{program}: {'is not on PATH' if is_absent else error.strerror}", hint="opsctl doctor")


def spawn(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that outlives opsctl, in a separate session, with its output appended to `log`.

    The program loses the mark of a bounded run: a timeout of the cron entry that started opsctl does not end it.
    """
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o644), "ab") as out:
            return subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={name: value for name, value in {**os.environ, **(env or {})}.items() if name != MARK_VARIABLE},
                start_new_session=True,
            )
    except OSError as error:
        raise _missing(argv[0], error) from error


def run_attached(argv: Sequence[str], *, env: Mapping[str, str]) -> int:
    """Run a program on this terminal, with exactly `env` and without a timeout. Return the exit code as a shell does.

    The program handles Ctrl-C. If opsctl ends, also by TERM, HUP or KILL, the program is killed.
    """
    try:
        process = subprocess.Popen(list(argv), env=dict(env), preexec_fn=lambda: die_with_parent(signal.SIGKILL))  # noqa: PLW1509 (one prctl; no other threads run)
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
    """Replace this process by another program. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(argv[0], list(argv), {**os.environ, **(env or {})})


def user_name(uid: int) -> str:
    """Return the name of a user, or the number if this machine knows no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def boot_id() -> str:
    """Return the id of this boot of the kernel, the same in every process; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def suspended_s() -> float:
    """Return for how long this machine was suspended since its boot; the monotonic clock stood still meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def state_home() -> Path:
    """Return the directory of opsctl's state of this user on this machine."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "opsctl"
