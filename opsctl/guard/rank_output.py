"""The output of a rank, copied to its own log and to main_log. For rank.py: standard library only, quick to import."""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator

MAX_READ_BYTES = 65536
MAX_LINE_BYTES = 65536
WRITE_BYTES = 4096  # a writable pipe takes so much without blocking
MAX_WAITING_BYTES = 1 << 20
IDLE_LINE_S = 5.0  # an unfinished line is shown after so long: the line may be the last before a hang
LOOK_S = 0.5
DRAIN_S = 2.0  # for output of processes that outlive COMMAND
STUCK_S = 10.0  # if stdout accepts nothing for so long, lines are dropped and the training goes on


class Log:
    """The log of the rank, with its output unchanged, or of its node, to which each write() appends whole lines."""

    def __init__(self, path: str, *, is_shared: bool) -> None:
        self.path = path
        self.is_shared = is_shared
        self.lost = 0
        self.handle = -1
        self.has_complained = False
        try:
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
        self.at_exit: Callable[[int], None] = lambda _: None

    def copy_until_exit(
        self, output: int, signals: int, waiting: Iterator[int | None], *, meanwhile: Callable[[], None]
    ) -> int:
        """Copy until COMMAND has ended, and for DRAIN_S longer while other processes hold its output open.

        Return the wait status of COMMAND, for which `waiting` is asked after every signal, of which `signals` tells,
        and every LOOK_S, before `meanwhile` is called. `at_exit` receives the status at once.
        """
        sources = {output, signals}
        look_s = drain_until_s = 0.0
        status: int | None = None
        while status is None or (output in sources and time.monotonic() < drain_until_s):
            readable = sources - {output} if self.stdout.holds_back else sources
            ready, writable, _ = select.select(readable, [1] if self.stdout.waiting else [], [], LOOK_S)
            if writable:
                self.stdout.write()
            if output in ready and not self.copy(output):
                sources.remove(output)
            if signals in ready:
                os.read(signals, MAX_READ_BYTES)
            if status is None and (signals in ready or time.monotonic() >= look_s):
                look_s = time.monotonic() + LOOK_S
                status = next(waiting)
                if status is None:
                    meanwhile()
                else:
                    drain_until_s = time.monotonic() + DRAIN_S
                    self.at_exit(status)
            self.show_idle_line()
        return status

    def copy(self, output: int) -> bool:
        """Copy one chunk. Return False at the end of the output."""
        data = os.read(output, MAX_READ_BYTES)
        if not self.log.is_shared:
            self.log.write(data)
        self.add(self.lines.cut(data))
        self.read_at_s = time.monotonic()
        return bool(data)

    def add(self, lines: bytes) -> None:
        if self.log.is_shared:
            self.log.write(lines)
        self.stdout.add(lines)

    def show_idle_line(self) -> None:
        if self.lines.partial and time.monotonic() - self.read_at_s > IDLE_LINE_S:
            self.add(self.lines.rest())

    def finish(self, output: int) -> None:
        """Copy the rest of the pipe, give stdout time to accept it, and report lost bytes."""
        while select.select([output], [], [], 0)[0] and self.copy(output):
            pass
        self.add(self.lines.rest())
        while self.stdout.waiting and not self.stdout.is_stuck:
            if select.select([], [1], [], 0.5)[1]:
                self.stdout.write()
        if lost := self.stdout.lost + len(self.stdout.waiting):
            warn(f"{lost} bytes are missing from main_log; {self.log.path} should have them")
        if self.log.lost:
            warn(f"{self.log.lost} bytes are missing from {self.log.path}")


def warn(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"opsctl: {text}\n".encode(errors="surrogateescape"))
