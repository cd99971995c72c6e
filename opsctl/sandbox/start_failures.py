"""Find the causes why a sandbox did not start, in the logs of its daemons and in listening sockets."""

import ipaddress
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

import psutil

from opsctl.base.errors import SandboxError
from opsctl.base.tables import read_package_table
from opsctl.sandbox.record import CONTROLLER, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import count_ports

TAIL_LINES = 5
"""The number of lines of a log in a message."""


def list_listening_sockets() -> Iterator[Any]:
    """Yield psutil's row of every listening TCP socket; its pid is None for another user's process."""
    rows = psutil.net_connections(kind="tcp")
    yield from (row for row in rows if row.status == psutil.CONN_LISTEN and row.laddr)


def to_plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address to which a socket is bound, as IPv4 if it is such an address in IPv6."""
    parsed = ipaddress.ip_address(address)
    return getattr(parsed, "ipv4_mapped", None) or parsed


def describe_socket(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def accepts(bound: str, address: str) -> bool:
    """Return whether a connection to `address` reaches a socket that is bound to `bound`."""
    return to_plain(bound).is_unspecified or to_plain(bound) == ipaddress.ip_address(address)


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
    sockets = [socket for socket in list_listening_sockets() if socket.laddr.port == port and socket.pid == own]
    address = record.site.network.address
    if not sockets or any(accepts(socket.laddr.ip, address) for socket in sockets):
        return ""
    return f"listens on {describe_socket(*sockets[0].laddr)}, not on {address}"


def describe_port_holder(record: SandboxRecord, name: str, port: int) -> str:
    """Return the other process that listens on a daemon's port, in words; empty if the daemon does, or no process."""
    own = {daemon.process.pid for daemon in record.daemons if daemon.name == name}
    holders = [
        socket.pid for socket in list_listening_sockets() if socket.laddr.port == port and socket.pid is not None
    ]
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
    sockets = [socket for socket in list_listening_sockets() if socket.laddr.port in ports]
    if exposed := [socket for socket in sockets if not to_plain(socket.laddr.ip).is_loopback]:
        raise make_error(record, f"the sandbox listens on {describe_socket(*exposed[0].laddr)}, which is not loopback")
