"""Names that one process of this machine holds at a time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


class NameTaken(Exception):
    """Somebody else holds the name now."""


@contextlib.contextmanager
def claimed(*names: str) -> Iterator[None]:
    """Hold all of `names`, against every process of every user, or raise Taken.

    A claim is an abstract socket: it reaches exactly as far as TCP ports do (this network namespace), and the kernel
    drops it when its holder dies.
    """
    with contextlib.ExitStack() as stack:
        for name in names:
            holder = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                holder.bind(f"\0opsctl-sandbox-{name}")
            except OSError as error:
                raise NameTaken(name) from error
        yield
