"""Threads that empty the delivery queues: one per channel, so that a channel that hangs delays no other channel.

A thread that still sends when its process ends is like a killed sender: the outbox keeps the message and the next
process sends the message again.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from opsctl.alerts.outbox import Delivery
from opsctl.base.ports import Clock

Refill = Callable[[Iterable[str]], None]
"""Reports channels that received a message during a flush, such as the fallback of a dead channel."""

Flush = Callable[[str, Refill], list[Delivery]]
"""Delivers the due messages of one channel."""


@dataclass(slots=True)
class Senders:
    """The sending threads of this process. Keep the object between cycles: a channel has at most one thread."""

    clock: Clock
    unrecorded: set[tuple[str, str]] = field(default_factory=set)
    """Messages that were delivered while no outbox could record that; see `Outbox`."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)
    """Channels that received a message since their thread began to flush."""
    _deliveries: list[Delivery] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def start(self, channels: Iterable[str], flush: Flush) -> None:
        """Start a thread for every channel that has none; the thread of a channel that has one flushes once more."""
        with self._lock:
            for channel in channels:
                if channel in self._threads:
                    self._again.add(channel)
                    continue
                thread = threading.Thread(target=self._work, args=(channel, flush), daemon=True, name=f"send {channel}")
                self._threads[channel] = thread
                thread.start()

    def wait(self, seconds: float | None = None) -> Collection[str]:
        """Wait until all threads have ended, at most `seconds`; return the channels that still send."""
        deadline = None if seconds is None else self.clock.monotonic() + seconds
        while running := self._running():
            left = None if deadline is None else deadline - self.clock.monotonic()
            if left is not None and left <= 0:
                break
            running[0].join(left)
            if left is not None and running[0].is_alive():
                break
        with self._lock:
            return tuple(self._threads)

    def collect(self) -> list[Delivery]:
        """Return the deliveries since the last call. Raises the first error of a thread, also a bug."""
        with self._lock:
            deliveries, self._deliveries = self._deliveries, []
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
        return deliveries

    def _running(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads.values())

    def _work(self, channel: str, flush: Flush) -> None:
        def refill(channels: Iterable[str]) -> None:
            self.start([name for name in channels if name != channel], flush)

        try:
            while True:
                deliveries = flush(channel, refill)
                with self._lock:
                    self._deliveries += deliveries
                    if channel not in self._again:
                        del self._threads[channel]
                        return
                    self._again.discard(channel)
        except BaseException as error:  # noqa: BLE001 (raised again by `collect`, in the caller's thread)
            with self._lock:
                self._errors.append(error)
                self._again.discard(channel)
                self._threads.pop(channel, None)
