"""Choose the loopback address of a sandbox, and keep its daemons on that address.

Slurm's daemons bind to every address of the machine, or to the address that the host name resolves to. No setting of
any version of Slurm names another address. A shared library with one function, `bind`, made without a compiler and
loaded into these daemons alone (LD_PRELOAD), replaces the C library's: an IPv4 address becomes 127.0.0.1, an IPv6
address becomes the library's address, other sockets do not change. No privileges or namespaces are needed.
"""

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import SandboxError

MACHINES = ("x86_64", "aarch64")
"""The processors with a listing of the library."""
RESOLVE_TIMEOUT_S = 2.0
"""A name that takes longer counts as unresolvable: every Slurm command would wait as long."""
SLURM_FLAGS = socket.AI_ADDRCONFIG | socket.AI_NUMERICSERV | socket.AI_PASSIVE
"""Slurm's flags of getaddrinfo. AI_ADDRCONFIG ignores a family whose only address here is 127.0.0.1 or ::1."""
NETWORK_CHOICES: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (socket.AF_INET, "127.0.0.1", ()),
    (socket.AF_UNSPEC, "127.0.0.1", ("EnableIPv6",)),  # no network but loopback
    (socket.AF_INET6, "::1", ("EnableIPv6", "DisableIPv4")),  # a network of IPv6 alone
)
BIND_TO_HOST = ("NoCtldInAddrAny", "NoInAddrAny")
"""With these parameters Slurm binds to the address of the host name, not to every address."""
Resolve = Callable[[str, int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a sandbox listens."""

    address: str
    parameters: tuple[str, ...]
    """Slurm's CommunicationParameters."""
    confined: bool
    """Whether the daemons load the library that binds to loopback only."""

    @property
    def ipv6_address(self) -> str:
        """The address to which an IPv6 socket binds, so that `address` reaches the socket."""
        return self.address if ":" in self.address else f"::ffff:{self.address}"


def choose_network(host: str, resolve: Resolve | None = None, machine: str | None = None) -> Network:
    """Return the loopback network that Slurm accepts on this machine. Raises SandboxError.

    Where `host` resolves to loopback, Slurm's NoInAddrAny keeps daemons and commands on loopback. Elsewhere NoInAddrAny
    would bind to another address or none, and the library keeps the daemons on loopback.
    """
    resolve = resolve or resolve_bounded
    for family, address, parameters in NETWORK_CHOICES:
        if resolve(address, family) != address:
            continue
        if resolve(host, family) == address:
            return Network(address=address, parameters=(*parameters, *BIND_TO_HOST), confined=False)
        if is_supported(machine):
            return Network(address=address, parameters=parameters, confined=True)
        raise SandboxError(
            f"Slurm binds to the address of the host name, but {host!r} does not resolve to {address}",
            hint=f"add the line `{address} {host}` to /etc/hosts, before other lines that name {host}",
        )
    raise SandboxError("this machine has no usable loopback address", hint="ip link set lo up")


def resolve_bounded(name: str, family: int) -> str | None:
    """Return the address that Slurm would use for `name`; None without an address or after RESOLVE_TIMEOUT_S."""
    addresses: list[str] = []

    def resolve() -> None:
        try:
            rows = socket.getaddrinfo(os.fsencode(name), "0", family, socket.SOCK_STREAM, 0, SLURM_FLAGS)
        except OSError:
            return
        addresses.append(str(rows[0][4][0]))

    # getaddrinfo cannot be interrupted; a thread that still waits for DNS ends with this process.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(RESOLVE_TIMEOUT_S)
    return addresses[0] if addresses else None


def choose_library_path(paths: Sequence[Path]) -> Path:
    """Return the first path that LD_PRELOAD can hold on a file system that allows code. Raises SandboxError."""
    for path in paths:
        if not os.statvfs(path.parent).f_flag & os.ST_NOEXEC and not set(str(path)) & set(" :"):
            return path
    directories = " or ".join(str(path.parent) for path in paths)
    raise SandboxError(
        f"no program may load code from {directories} (mounted noexec, or a path with a space or a colon)",
        hint="set XDG_STATE_HOME to a directory on a file system mounted without noexec",
    )


def is_listening(address: str, port: int) -> bool:
    """Return whether a connection to this port succeeds within a second."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a library for this processor."""
    return (machine or os.uname().machine) in MACHINES


def build_library(ipv6_address: str, machine: str | None = None) -> bytes:
    """Return the bytes of the library file. IPv6 sockets bind to `ipv6_address`."""
    listing = Path(__file__).with_name(f"loopback_{machine or os.uname().machine}.asm")
    library, address = b"", ipaddress.IPv6Address(ipv6_address).packed
    for line in listing.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].partition("|")[0].split()
        if words[:1] == ["at"]:
            library = library.ljust(int(words[1], 16), b"\0")
        elif words:
            library += address if words == ["SIX"] else bytes.fromhex(words[0])
    return library
