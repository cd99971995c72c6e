"""The output of a rank, copied to its own log and to main_log. For rank.py: standard library only, quick to import."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

MAX_READ_BYTES = 65536
MAX_LINE_BYTES = 65536
WRITE_BYTES = 4096  # a writable pipe takes so much without blocking
MAX_WAITING_BYTES = 1 << 20
IDLE_LINE_S = 5.0  # an unfinished line is shown after so long: the line may be the last before a hang
DRAIN_S = 2.0  # for output of processes that outlive COMMAND
STUCK_S = 10.0  # if stdout accepts nothing for so long, lines are dropped and the training goes on


class Log:
    """The log file of the rank, which holds its output unchanged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        self.handle = -1
        self.has_complained = False
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 (pathlib, see above)
            self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.complain(error)

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.handle, data) :]
            except OSError as error:
                self.complain(error)
                self.lost += len(data)
                return

    def complain(self, error: OSError) -> None:
        if not self.has_complained:
            warn(f"{self.path}: {error.strerror}; the rank goes on without this log")
        self.has_complained = True


class Lines:
    """Cuts output into lines with a prefix. A carriage return ends a line, so that progress bars are shown."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode(errors="surrogateescape")
        self.partial = b""

    def cut(self, data: bytes) -> bytes:
        """Return the complete lines, and lines too long to wait for their end."""
        data = self.partial + data
        if b"\r" in data:
            data = self.without_returns(data)
        complete, newline, self.partial = data.rpartition(b"\n")
        out = self.prefixed(complete) if newline else b""
        # A newline may still follow a carriage return.
        return out + self.rest() if len(self.partial) > MAX_LINE_BYTES else out

    def without_returns(self, data: bytes) -> bytes:
        last = data[-1:] if data.endswith(b"\r") else b""
        body = data[: len(data) - len(last)].replace(b"\r\n", b"\n").lstrip(b"\r").replace(b"\r", b"\n")
        return body + last

    def rest(self) -> bytes:
        """Return the unfinished line as a line."""
        partial, self.partial = self.partial.rstrip(b"\r"), b""
        return self.prefixed(partial) if partial else b""

    def prefixed(self, text: bytes) -> bytes:
        return self.prefix + text.replace(b"\n", b"\n" + self.prefix) + b"\n"


class Stdout:
    """The pipe to main_log. Output that the pipe does not accept is queued, then blocks COMMAND, then is dropped."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.progressed_s = 0.0
        self.lost = 0
        self.is_gone = False

    @property
    def is_stuck(self) -> bool:
        return bool(self.waiting) and time.monotonic() - self.progressed_s > STUCK_S

    @property
    def holds_back(self) -> bool:
        return len(self.waiting) >= MAX_WAITING_BYTES and not self.is_stuck

    def add(self, data: bytes) -> None:
        if self.is_gone or len(self.waiting) >= MAX_WAITING_BYTES:
            self.lose(data, "stdout accepts nothing")
            return
        if not self.waiting:
            self.progressed_s = time.monotonic()
        self.waiting += data

    def write(self) -> None:
        """Write as much as never blocks."""
        try:
            del self.waiting[: os.write(1, self.waiting[:WRITE_BYTES])]
            self.progressed_s = time.monotonic()
        except OSError as error:
            self.is_gone = True
            self.lose(self.waiting, f"stdout: {error.strerror}")
            self.waiting.clear()

    def lose(self, data: bytes | bytearray, why: str) -> None:
        if data and not self.lost:
            warn(f"{why}; the rank goes on without main_log")
        self.lost += len(data)


class Copier:
    def __init__(self, log: Log, lines: Lines, stdout: Stdout) -> None:
        self.log = log
        self.lines = lines
        self.stdout = stdout
        self.read_at_s = time.monotonic()

    def copy_until_exit(
        self, output: int, status_pipe: int, *, meanwhile: Callable[[], None], at_exit: Callable[[int], None]
    ) -> int:
        """Copy until COMMAND has ended, and for DRAIN_S longer while other processes hold its output open.

        Return the wait status of COMMAND; `at_exit` receives the status at once. `meanwhile` is called at least every
        0.5 s as long as COMMAND runs.
        """
        sources = {output, status_pipe}
        drain_until_s = 0.0
        status: int | None = None
        while (status_pipe in sources) or (output in sources and time.monotonic() < drain_until_s):
            readable = sources - {output} if self.stdout.holds_back else sources
            ready, writable, _ = select.select(readable, [1] if self.stdout.waiting else [], [], 0.5)
            if writable:
                self.stdout.write()
            if output in ready and not self.copy(output):
                sources.remove(output)
            if status_pipe in ready:
                sources.remove(status_pipe)
                status = read_number(status_pipe)
                drain_until_s = time.monotonic() + DRAIN_S
                at_exit(signal.SIGKILL if status is None else status)
            elif status is None:
                meanwhile()
            self.show_idle_line()
        return signal.SIGKILL if status is None else status

    def copy(self, output: int) -> bool:
        """Copy one chunk. Return False at the end of the output."""
        data = os.read(output, MAX_READ_BYTES)
        self.log.write(data)
        self.stdout.add(self.lines.cut(data))
        self.read_at_s = time.monotonic()
        return bool(data)

    def show_idle_line(self) -> None:
        if self.lines.partial and time.monotonic() - self.read_at_s > IDLE_LINE_S:
            self.stdout.add(self.lines.rest())

    def finish(self, output: int) -> None:
        """Copy the rest of the pipe, give stdout time to accept it, and report lost bytes."""
        while select.select([output], [], [], 0)[0] and self.copy(output):
            pass
        self.stdout.add(self.lines.rest())
        while self.stdout.waiting and not self.stdout.is_stuck:
            if select.select([], [1], [], 0.5)[1]:
                self.stdout.write()
        if lost := self.stdout.lost + len(self.stdout.waiting):
            warn(f"{lost} bytes are missing from main_log; {self.log.path} should have them")
        if self.log.lost:
            warn(f"{self.log.lost} bytes are missing from {self.log.path}")


def read_number(status_pipe: int) -> int | None:
    """Return the next number from the keeper, or None if the keeper was killed."""
    data = os.read(status_pipe, 8)
    return int.from_bytes(data, "big") if data else None


def warn(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"opsctl: {text}\n".encode(errors="surrogateescape"))
