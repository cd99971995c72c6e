"""Names and ranges of free TCP ports that one sandbox holds, without a race between sandboxes that start together."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from opsctl.base.errors import SandboxError

FIRST_PORT, LAST_PORT = 20000, 32000
"""Below the ports that kernels choose (32768 and up), above the ports of common services."""
BLOCK_PORTS = 32
"""Sandboxes hold ports in blocks of this size."""


class NameTaken(Exception):
    """Another process holds the name."""


@contextlib.contextmanager
def hold_names(*names: str) -> Iterator[None]:
    """Hold all of `names` against every process of every user. Raises NameTaken.

    A name is an abstract socket, which is valid in this network namespace, as TCP ports are. The kernel releases the
    name when its holder ends.
    """
    with contextlib.ExitStack() as stack:
        for name in names:
            unix_socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                unix_socket.bind(f"\0opsctl-sandbox-{name}")
            except OSError as error:
                raise NameTaken(name) from error
        yield


@contextlib.contextmanager
def hold_ports(count: int) -> Iterator[int]:
    """Yield the first port of a range of `count` free ports, held against other sandboxes. Raises SandboxError."""
    blocks = -(-count // BLOCK_PORTS)
    starts = list(range(FIRST_PORT, LAST_PORT - blocks * BLOCK_PORTS, BLOCK_PORTS))
    random.shuffle(starts)
    with contextlib.ExitStack() as stack:
        start = next((start for start in starts if hold_blocks(stack, start, blocks)), None)
        if start is None:
            raise SandboxError(f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")
        yield start


def hold_blocks(stack: contextlib.ExitStack, start: int, blocks: int) -> bool:
    """Hold these blocks until `stack` closes. Return False if another process holds a block or uses a port."""
    ports = range(start, start + blocks * BLOCK_PORTS)
    with contextlib.ExitStack() as held_blocks:
        try:
            held_blocks.enter_context(hold_names(*(f"port-{port}" for port in ports[::BLOCK_PORTS])))
        except NameTaken:
            return False
        if not all(is_free(port) for port in ports):
            return False
        stack.enter_context(held_blocks.pop_all())
    return True


def is_free(port: int) -> bool:
    """Return whether no process listens on the port, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without SO_REUSEADDR a port that was in use a minute ago would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
