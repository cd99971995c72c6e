"""Loopback ports for the servers of tests."""

from __future__ import annotations

import socket


class HeldPort:
    """A port that the kernel gives to no other process until `let_go`.

    A server that sets SO_REUSEADDR, as all servers here do, can listen on the port. While no server listens,
    connections are refused.
    """

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
