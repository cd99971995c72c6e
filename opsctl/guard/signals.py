"""Signals to this process, told at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable
from types import FrameType


class Signals:
    """Calls `told` for each signal as it arrives, also in the middle of a question to Slurm that nobody answers."""

    def __init__(self, numbers: Iterable[int], told: Callable[[signal.Signals], None]) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def note(number: int, _: FrameType | None) -> None:
            told(signal.Signals(number))

        for number in numbers:
            signal.signal(number, note)

    def wait(self, seconds: float) -> None:
        """Until a signal arrives or a child ends, for `seconds` at most."""
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65536)
