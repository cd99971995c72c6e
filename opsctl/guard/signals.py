"""Signals to this process, handled without delay."""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection
from types import FrameType


class Signals:
    """Calls `on_signal` for each signal as it arrives, even while a command of Slurm does not answer."""

    def __init__(self, numbers: Collection[int], on_signal: Callable[[signal.Signals], None]) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def handle(number: int, _: FrameType | None) -> None:
            on_signal(signal.Signals(number))

        for number in numbers:
            signal.signal(number, handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # blocked while one guard replaced another

    def wait(self, timeout_s: float) -> bool:
        """Wait until a signal arrives or a child ends, for at most `timeout_s`. Return whether one has."""
        ready, _, _ = select.select([self._read], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65536)
        return bool(ready)
