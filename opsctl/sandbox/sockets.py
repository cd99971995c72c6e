"""List listening sockets and their processes, from /proc."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

LISTEN = "0A"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSocket:
    """A TCP socket of this network namespace that accepts connections."""

    address: str
    port: int
    inode: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self._plain().is_loopback

    def accepts(self, address: str) -> bool:
        """Return whether a connection to `address` reaches this socket."""
        plain = self._plain()
        return plain.is_unspecified or plain == ipaddress.ip_address(address)

    def _plain(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        address = ipaddress.ip_address(self.address)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            return address.ipv4_mapped
        return address


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketHolder:
    """A process with an open socket."""

    pid: int
    name: str


def list_listening_sockets() -> list[ListeningSocket]:
    """Return every listening TCP socket, of IPv4 and IPv6."""
    sockets: list[ListeningSocket] = []
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        sockets += filter(None, map(parse_row, rows))
    return sockets


def parse_row(row: str) -> ListeningSocket | None:
    """Parse a line of /proc/net/tcp or tcp6; None if the socket does not listen."""
    words = row.split()
    if words[3] != LISTEN:
        return None
    address, _, port = words[1].partition(":")
    # The kernel prints every group of four bytes as a number in the byte order of the machine.
    packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    return ListeningSocket(address=str(ipaddress.ip_address(packed)), port=int(port, 16), inode=int(words[9]))


def list_sockets_of(pid: int) -> list[ListeningSocket]:
    """Return the listening sockets of a process; empty for an ended process or another user's process."""
    inodes = set(list_inodes(pid))
    return [socket for socket in list_listening_sockets() if socket.inode in inodes] if inodes else []


def find_holders(socket: ListeningSocket) -> list[SocketHolder]:
    """Return the processes with this socket, as far as this user may read /proc."""
    holders = []
    for pid in psutil.pids():
        if socket.inode in list_inodes(pid):
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            holders.append(SocketHolder(pid=pid, name=name))
    return holders


def list_inodes(pid: int) -> Iterator[int]:
    """Yield the inode numbers of a process's sockets."""
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for handle in handles:
        try:
            target = os.readlink(handle)  # noqa: PTH115 (the target of this link is no path)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])
