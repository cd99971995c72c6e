"""The loopback address of a sandbox, and how its daemons are kept on it, whatever the host name resolves to."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import SandboxError
from opsctl.sandbox.loopback_library import is_supported

RESOLVE_TIMEOUT_S = 2.0
"""A host name that takes longer is left out of the sandbox: every command of Slurm would wait as long."""
SLURM_FLAGS = socket.AI_ADDRCONFIG | socket.AI_NUMERICSERV | socket.AI_PASSIVE
"""As Slurm asks. With AI_ADDRCONFIG, a family that only 127.0.0.1 or ::1 has on this machine does not count."""
CHOICES: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (socket.AF_INET, "127.0.0.1", ()),
    (socket.AF_UNSPEC, "127.0.0.1", ("EnableIPv6",)),  # no network but loopback
    (socket.AF_INET6, "::1", ("EnableIPv6", "DisableIPv4")),  # a network of IPv6 alone
)
BIND_TO_HOST = ("NoCtldInAddrAny", "NoInAddrAny")
"""Slurm's daemons and commands bind to what the host name resolves to, and not to every address."""
Resolve = Callable[[str, int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a sandbox listens. `confined`: its daemons load the library that binds to loopback only."""

    address: str
    parameters: tuple[str, ...]
    """Slurm's CommunicationParameters."""
    confined: bool

    @property
    def six(self) -> str:
        """What an IPv6 socket binds to, so that `address` reaches it."""
        return self.address if ":" in self.address else f"::ffff:{self.address}"


def choose_network(host: str, resolve: Resolve | None = None, machine: str | None = None) -> Network:
    """Find the loopback address that Slurm accepts on this machine, and whether `host` resolves to it.

    Where it does, Slurm's own NoInAddrAny keeps daemons and commands on loopback. Where it does not, NoInAddrAny would
    bind them to another address or to none; then the library keeps the daemons on loopback instead.
    """
    resolve = resolve or resolve_bounded
    for family, address, parameters in CHOICES:
        if resolve(address, family) != address:
            continue
        if resolve(host, family) == address:
            return Network(address=address, parameters=(*parameters, *BIND_TO_HOST), confined=False)
        if is_supported(machine):
            return Network(address=address, parameters=parameters, confined=True)
        raise SandboxError(
            f"Slurm binds to what the host name resolves to, and {host!r} does not resolve to {address}",
            hint=f"add the line `{address} {host}` to /etc/hosts, before other lines that name {host}",
        )
    raise SandboxError("this machine has no usable loopback address", hint="ip link set lo up")


def resolve_bounded(name: str, family: int) -> str | None:
    """The address that Slurm would use for `name`, or None: no such name, or no answer within RESOLVE_TIMEOUT_S."""
    found: list[str] = []

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(os.fsencode(name), "0", family, socket.SOCK_STREAM, 0, SLURM_FLAGS)
        except OSError:
            return
        found.append(str(rows[0][4][0]))

    # The C library's question cannot be interrupted; a thread that still waits for DNS ends with this process.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(RESOLVE_TIMEOUT_S)
    return found[0] if found else None


def choose_library_path(paths: Sequence[Path]) -> Path:
    """The first of `paths` whose file system lets programs load code, and whose name LD_PRELOAD can hold."""
    for path in paths:
        if not os.statvfs(path.parent).f_flag & os.ST_NOEXEC and not set(str(path)) & set(" :"):
            return path
    directories = " or ".join(str(path.parent) for path in paths)
    raise SandboxError(
        f"no program may load code from {directories} (mounted noexec, or a path with a space or a colon)",
        hint="set XDG_STATE_HOME to a directory on a file system mounted without noexec",
    )


def is_listening(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
