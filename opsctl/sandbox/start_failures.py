"""Find the causes why a sandbox did not start, in the logs of its daemons and in listening sockets."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

import psutil

from opsctl.base.errors import SandboxError
from opsctl.base.tables import read_package_table
from opsctl.sandbox.record import CONTROLLER, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import count_ports

TAIL_LINES = 5
"""The number of lines of a log in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSocket:
    """A TCP socket of this network namespace that accepts connections."""

    address: str
    port: int
    pid: int | None
    """The process with this socket; None for another user's process."""

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
        return getattr(address, "ipv4_mapped", None) or address


def list_listening_sockets() -> Iterator[ListeningSocket]:
    """Yield every listening TCP socket, of IPv4 and IPv6."""
    for row in psutil.net_connections(kind="tcp"):
        if row.status == psutil.CONN_LISTEN and row.laddr:
            yield ListeningSocket(address=row.laddr.ip, port=row.laddr.port, pid=row.pid)


@cache
def load_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the rows of start_failures.toml: a known message, and the cause that it names."""
    rows = read_package_table("sandbox/start_failures.toml")["failure"]
    return tuple((re.compile(row["pattern"]), row["cause"]) for row in rows)


def find_causes(text: str) -> list[str]:
    """Return the causes that a daemon's log names, without duplicates, the earliest first."""
    causes = [
        (match.start(), cause.format(*(group.strip() for group in match.groups())))
        for pattern, cause in load_patterns()
        if (match := pattern.search(text))
    ]
    return [cause for _, cause in sorted(causes)]


def make_error(record: SandboxRecord, message: str, *names: str) -> SandboxError:
    """Return an error with the causes found and the last lines of the named daemons' logs."""
    logs = record.site.home / "log"
    causes: list[str] = []
    tails: list[str] = []
    for path in chain.from_iterable(sorted(logs.glob(f"*{name}.*")) for name in names):
        text = path.read_text(errors="replace")
        causes += find_causes(text)
        tails += [f"{path.name}: {line}" for line in text.splitlines()[-TAIL_LINES:]]
    for name in names:
        port = port_of(record, name)
        if port and (holder := describe_port_holder(record, name, port)):
            causes.append(holder)
    unique = dict.fromkeys(f"cause: {cause}" for cause in causes)
    return SandboxError("\n  ".join([message, *unique, *tails]), logs=logs)


def port_of(record: SandboxRecord, name: str) -> int | None:
    """Return the TCP port of a daemon; None for a daemon without a port."""
    site, names = record.site, record.spec.node_names
    if name in names:
        return site.node_port + names.index(name)
    return {CONTROLLER: site.controller_port, SLURMDBD: site.dbd_port}.get(name)


def describe_wrong_address(record: SandboxRecord, name: str, port: int) -> str:
    """Return the wrong address on which a daemon listens, in words; empty for the right address or none."""
    daemon = record.daemon(name)
    if daemon is None:
        return ""
    own = daemon.process.pid
    sockets = [socket for socket in list_listening_sockets() if socket.port == port and socket.pid == own]
    address = record.site.network.address
    if not sockets or any(socket.accepts(address) for socket in sockets):
        return ""
    return f"listens on {sockets[0]}, not on {address}"


def describe_port_holder(record: SandboxRecord, name: str, port: int) -> str:
    """Return the other process that listens on a daemon's port, in words; empty if the daemon does, or no process."""
    own = {daemon.process.pid for daemon in record.daemons if daemon.name == name}
    holders = [socket.pid for socket in list_listening_sockets() if socket.port == port and socket.pid is not None]
    if not holders or own & set(holders):
        return ""
    try:
        name = psutil.Process(holders[0]).name()
    except psutil.Error:  # has ended since
        return ""
    return f"port {port} is taken by {name} (process {holders[0]})"


def check_loopback(record: SandboxRecord) -> None:
    """Raise SandboxError if a port of the sandbox is open on an address other than loopback."""
    first = record.site.first_port
    ports = range(first, first + count_ports(record.spec))
    sockets = [socket for socket in list_listening_sockets() if socket.port in ports]
    if exposed := [socket for socket in sockets if not socket.is_loopback]:
        raise make_error(record, f"the sandbox listens on {exposed[0]}, which is not loopback")
