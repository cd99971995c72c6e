"""Ports of loopback for the servers of tests."""

from __future__ import annotations

import socket


class HeldPort:
    """Nobody else is given it until it is let go. A server that sets SO_REUSEADDR, as all do, may listen on it; as long
    as none does, whoever connects is refused."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        self._socket.close()
