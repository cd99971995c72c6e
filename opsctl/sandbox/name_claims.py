"""Names that only one process of this machine can hold at a time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


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
