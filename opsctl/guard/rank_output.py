"""What a rank says, on its way to its own log and to main_log. For rank.py: standard library only, quick to import."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

READ_SIZE = 65536
LONGEST_LINE = 65536
WRITE_SIZE = 4096  # a pipe that is writable takes so much without blocking
MOST_WAITING = 1 << 20
IDLE_SECONDS = 5.0  # a line that is not ended is shown after so long: it may be the last before a hang
DRAIN_SECONDS = 2.0  # for what COMMAND left behind
STUCK_SECONDS = 10.0  # a stdout that takes nothing for so long loses lines, rather than stopping the training


class Log:
    """The rank's own file: the bytes as they came."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        self.handle = -1
        self.complained = False
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
        if not self.complained:
            say(f"{self.path}: {error.strerror}; the rank goes on without it")
        self.complained = True


class Lines:
    """Cuts what arrives into lines with a prefix. A carriage return ends a line, so that a progress bar shows."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode(errors="surrogateescape")
        self.partial = b""

    def cut(self, data: bytes) -> bytes:
        """The lines that are complete, or too long to wait for their end."""
        data = self.partial + data
        if b"\r" in data:
            data = self.without_returns(data)
        complete, newline, self.partial = data.rpartition(b"\n")
        out = self.prefixed(complete) if newline else b""
        # After a carriage return there may be a newline still to come.
        return out + self.rest() if len(self.partial) > LONGEST_LINE else out

    def without_returns(self, data: bytes) -> bytes:
        last = data[-1:] if data.endswith(b"\r") else b""
        body = data[: len(data) - len(last)].replace(b"\r\n", b"\n").lstrip(b"\r").replace(b"\r", b"\n")
        return body + last

    def rest(self) -> bytes:
        """What there is of a line that has no end yet, as a line."""
        partial, self.partial = self.partial.rstrip(b"\r"), b""
        return self.prefixed(partial) if partial else b""

    def prefixed(self, text: bytes) -> bytes:
        return self.prefix + text.replace(b"\n", b"\n" + self.prefix) + b"\n"


class Stdout:
    """The way to main_log. What it does not take waits, then holds COMMAND back, and is dropped in the end."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.moved = 0.0
        self.lost = 0
        self.is_gone = False

    @property
    def is_stuck(self) -> bool:
        return bool(self.waiting) and time.monotonic() - self.moved > STUCK_SECONDS

    @property
    def holds_back(self) -> bool:
        return len(self.waiting) >= MOST_WAITING and not self.is_stuck

    def add(self, data: bytes) -> None:
        if self.is_gone or len(self.waiting) >= MOST_WAITING:
            self.lose(data, "stdout takes nothing")
            return
        if not self.waiting:
            self.moved = time.monotonic()
        self.waiting += data

    def write(self) -> None:
        """Write as much as surely does not block."""
        try:
            del self.waiting[: os.write(1, self.waiting[:WRITE_SIZE])]
            self.moved = time.monotonic()
        except OSError as error:
            self.is_gone = True
            self.lose(self.waiting, f"stdout: {error.strerror}")
            self.waiting.clear()

    def lose(self, data: bytes | bytearray, why: str) -> None:
        if data and not self.lost:
            say(f"{why}; the rank goes on without it")
        self.lost += len(data)


class Copier:
    def __init__(self, log: Log, lines: Lines, stdout: Stdout) -> None:
        self.log = log
        self.lines = lines
        self.stdout = stdout
        self.heard = time.monotonic()

    def until_the_end(self, output: int, news: int, at_exit: Callable[[int], None]) -> int:
        """Copy until COMMAND has ended, and a little longer while others hold its output open.

        Its wait(2) status; `at_exit` gets it at once.
        """
        sources = {output, news}
        until = 0.0
        status: int | None = None
        while (news in sources) or (output in sources and time.monotonic() < until):
            wanted = sources - {output} if self.stdout.holds_back else sources
            ready, writable, _ = select.select(wanted, [1] if self.stdout.waiting else [], [], 0.5)
            if writable:
                self.stdout.write()
            if output in ready and not self.copy(output):
                sources.remove(output)
            if news in ready:
                sources.remove(news)
                status, until = read_number(news), time.monotonic() + DRAIN_SECONDS
                at_exit(signal.SIGKILL if status is None else status)
            self.show_idle_line()
        return signal.SIGKILL if status is None else status

    def copy(self, output: int) -> bool:
        """Copy one piece. False at the end."""
        data = os.read(output, READ_SIZE)
        self.log.write(data)
        self.stdout.add(self.lines.cut(data))
        self.heard = time.monotonic()
        return bool(data)

    def show_idle_line(self) -> None:
        if self.lines.partial and time.monotonic() - self.heard > IDLE_SECONDS:
            self.stdout.add(self.lines.rest())

    def finish(self, output: int) -> None:
        """Copy what is left in the pipe, give stdout its time, and say what was lost."""
        while select.select([output], [], [], 0)[0] and self.copy(output):
            pass
        self.stdout.add(self.lines.rest())
        while self.stdout.waiting and not self.stdout.is_stuck:
            if select.select([], [1], [], 0.5)[1]:
                self.stdout.write()
        if lost := self.stdout.lost + len(self.stdout.waiting):
            say(f"{lost} bytes are missing from main_log; {self.log.path} should have them")
        if self.log.lost:
            say(f"{self.log.lost} bytes are missing from {self.log.path}")


def read_number(news: int) -> int | None:
    """The next number that the keeper tells, or None if it was killed."""
    data = os.read(news, 8)
    return int.from_bytes(data, "big") if data else None


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"opsctl: {text}\n".encode(errors="surrogateescape"))
