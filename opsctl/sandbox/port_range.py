"""Free TCP ports in a row, without a race between sandboxes that start at the same time."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from opsctl.errors import SandboxError
from opsctl.sandbox.name_claims import NameTaken, claimed

# Below the ports that kernels hand out by themselves (32768 and up), above what services use.
FIRST, LAST, BLOCK = 20000, 32000, 32


@contextlib.contextmanager
def claimed_ports(count: int) -> Iterator[int]:
    """The first of `count` free ports in a row, claimed against other sandboxes until they listen on it."""
    blocks = -(-count // BLOCK)
    starts = list(range(FIRST, LAST - blocks * BLOCK, BLOCK))
    random.shuffle(starts)
    with contextlib.ExitStack() as stack:
        start = next((start for start in starts if take(stack, start, blocks)), None)
        if start is None:
            raise SandboxError(f"no {count} free ports in a row between {FIRST} and {LAST}")
        yield start


def take(stack: contextlib.ExitStack, start: int, blocks: int) -> bool:
    """Claim these blocks for the attempt of `stack`, unless somebody has or uses any port of them."""
    ports = range(start, start + blocks * BLOCK)
    with contextlib.ExitStack() as attempt:
        try:
            attempt.enter_context(claimed(*(f"port-{port}" for port in ports[::BLOCK])))
        except NameTaken:
            return False
        if not all(is_free(port) for port in ports):
            return False
        stack.enter_context(attempt.pop_all())
    return True


def is_free(port: int) -> bool:
    """Nobody listens on it, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it a port that was in use a minute ago would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
