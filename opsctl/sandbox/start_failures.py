"""Find the causes why a sandbox did not start, in logs, sockets and ports."""

from __future__ import annotations

from itertools import chain

from opsctl.base.errors import SandboxError
from opsctl.sandbox.failure_causes import find_causes
from opsctl.sandbox.record import CONTROLLER, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import count_ports
from opsctl.sandbox.sockets import find_holders, list_listening_sockets, list_sockets_of

TAIL_LINES = 5
"""The number of lines of a log in a message."""


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
    return SandboxError("\n  ".join([message, *unique, *tails]), hint=f"all logs: {logs}")


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
    sockets = [socket for socket in list_sockets_of(daemon.process.pid) if socket.port == port]
    address = record.site.network.address
    if not sockets or any(socket.accepts(address) for socket in sockets):
        return ""
    return f"listens on {sockets[0]}, not on {address}"


def describe_port_holder(record: SandboxRecord, name: str, port: int) -> str:
    """Return the other process that listens on a daemon's port, in words; empty if the daemon does, or no process."""
    own = {daemon.process.pid for daemon in record.daemons if daemon.name == name}
    sockets = (socket for socket in list_listening_sockets() if socket.port == port)
    holders = list(chain.from_iterable(find_holders(socket) for socket in sockets))
    if holders and not any(holder.pid in own for holder in holders):
        return f"port {port} is taken by {holders[0].name} (process {holders[0].pid})"
    return ""


def check_loopback(record: SandboxRecord) -> None:
    """Raise SandboxError if a port of the sandbox is open on an address other than loopback."""
    first = record.site.first_port
    ports = range(first, first + count_ports(record.spec))
    sockets = [socket for socket in list_listening_sockets() if socket.port in ports]
    if exposed := [socket for socket in sockets if not socket.is_loopback]:
        raise make_error(record, f"the sandbox listens on {exposed[0]}, which is not loopback")
