"""Deadlines of connections to the pages, and places that strangers cannot take from the owner.

When all places are taken, the oldest connection without a session of the peer with the most of them ends. A peer is a
user of this machine, or the address of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from opsctl.base.extras import required
from opsctl.state.files import read_text

with required("dash"):
    from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_WITHIN_S = 5.0
"""For the head of a request, from the end of the response before it."""
STRANGER_WITHIN_S = 20.0
"""For all of a connection without a session."""
MAX_STRANGERS = 300
MAX_TABLE_BYTES = 16 << 20  # about 100,000 sockets
IN_SESSION = "opsctl.in_session"
"""Set in the scope of a request that has a valid cookie."""
_strangers: dict[PatientProtocol, str] = {}
"""Connections without a session, the oldest first, with their peers."""


class PatientProtocol(H11Protocol):
    """A connection of a browser, or of a stranger until a request shows a session."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        _strangers[self] = self.client[0] if self.client else ""
        if len(_strangers) > MAX_STRANGERS:
            _end_one()
        self.loop.call_later(STRANGER_WITHIN_S, self._end_stranger)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        _strangers.pop(self, None)
        if self._deadline:
            self._deadline.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        earlier = self.cycle
        super().handle_events()
        if self.cycle is not earlier and self._deadline:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        if self.scope and self.scope.get(IN_SESSION):
            _strangers.pop(self, None)
        self._expect_request()
        super().on_response_complete()

    def end(self) -> None:
        _strangers.pop(self, None)
        if not self.transport.is_closing():
            self.transport.abort()

    def _expect_request(self) -> None:
        if self._deadline:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self.end)

    def _end_stranger(self) -> None:
        if self in _strangers and not (self.scope and self.scope.get(IN_SESSION)):
            self.end()


def _end_one() -> None:
    """End the oldest connection of the peer that has the most, of those without a session."""
    users = {port: f"uid {uid}" for port, _, uid in read_sockets()}  # on loopback, all peers have one address
    peers = {one: users.get(one.client[1] if one.client else 0, peer) for one, peer in _strangers.items()}
    worst = Counter(peers.values()).most_common(1)[0][0]
    next(one for one, peer in peers.items() if peer == worst).end()


def read_sockets() -> Iterator[tuple[int, str, int]]:
    """Yield local port, state and user of this machine's TCP sockets, as far as the kernel shows them."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for row in map(str.split, read_text(Path(table), MAX_TABLE_BYTES).splitlines()[1:]):
                yield int(row[1].rpartition(":")[2], 16), row[3], int(row[7])
