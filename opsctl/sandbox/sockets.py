"""Which process of this machine listens where, read from /proc."""

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
        """Whether a connection to `address` reaches it."""
        plain = self._plain()
        return plain.is_unspecified or plain == ipaddress.ip_address(address)

    def _plain(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        ipv4_address = ipaddress.ip_address(self.address)
        return (
            ipv4_address.ipv4_mapped or ipv4_address
            if isinstance(ipv4_address, ipaddress.IPv6Address)
            else ipv4_address
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has a socket open."""

    pid: int
    name: str


def listening_sockets() -> list[ListeningSocket]:
    """Every listening TCP socket, of IPv4 and IPv6."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        found += [socket for row in rows if (socket := parse_row(row))]
    return found


def parse_row(row: str) -> ListeningSocket | None:
    """A line of /proc/net/tcp or tcp6, if its socket listens."""
    words = row.split()
    if words[3] != LISTEN:
        return None
    address, _, port = words[1].partition(":")
    # The kernel prints each group of four bytes as a number in the byte order of the machine.
    packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    return ListeningSocket(address=str(ipaddress.ip_address(packed)), port=int(port, 16), inode=int(words[9]))


def sockets_of(pid: int) -> list[ListeningSocket]:
    """Where a process listens; nothing if it is gone or another user's."""
    inodes = set(inodes_of(pid))
    return [socket for socket in listening_sockets() if socket.inode in inodes] if inodes else []


def holders_of(socket: ListeningSocket) -> list[Holder]:
    """The processes that have it open, as far as this user may see."""
    holders = []
    for pid in psutil.pids():
        if socket.inode in inodes_of(pid):
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
            holders.append(Holder(pid=pid, name=name))
    return holders


def inodes_of(pid: int) -> Iterator[int]:
    """The numbers of a process's sockets."""
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for handle in handles:
        try:
            target = os.readlink(handle)  # noqa: PTH115 (what a link of /proc says is no path)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])
