"""Why a sandbox did not start: what its daemons' logs, sockets and ports say."""

from __future__ import annotations

from opsctl.errors import SandboxError
from opsctl.sandbox.failure_causes import causes_in_log
from opsctl.sandbox.record import CONTROLLER, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import ports_needed
from opsctl.sandbox.sockets import holders_of, listening_sockets, sockets_of

TAIL_LINES = 5
"""Of each log, in a message."""


def failed(record: SandboxRecord, message: str, *names: str) -> SandboxError:
    """An error with the causes that can be found, and what the daemons' logs end with."""
    logs = record.site.home / "log"
    texts = {path.name: path.read_text(errors="replace") for name in names for path in sorted(logs.glob(f"*{name}.*"))}
    causes = [cause for text in texts.values() for cause in causes_in_log(text)]
    causes += [cause for name in names if (port := port_of(record, name)) and (cause := find_taken(record, name, port))]
    tails = [f"{name}: {line}" for name, text in texts.items() for line in text.splitlines()[-TAIL_LINES:]]
    unique = dict.fromkeys(f"cause: {cause}" for cause in causes)
    return SandboxError("\n  ".join([message, *unique, *tails]), hint=f"all logs: {logs}")


def port_of(record: SandboxRecord, name: str) -> int | None:
    """The TCP port that a daemon should listen on."""
    site, names = record.site, record.spec.node_names
    if name in names:
        return site.node_port + names.index(name)
    return {CONTROLLER: site.controller_port, SLURMDBD: site.dbd_port}.get(name)


def find_misplaced(record: SandboxRecord, name: str, port: int) -> str:
    """Where a daemon listens instead of on its own address, in words; empty if it does not."""
    daemon = record.daemon(name)
    listening_sockets = [place for place in sockets_of(daemon.process.pid) if place.port == port] if daemon else []
    address = record.site.network.address
    if not listening_sockets or any(place.accepts(address) for place in listening_sockets):
        return ""
    return f"listens on {listening_sockets[0]}, not on {address}"


def find_taken(record: SandboxRecord, name: str, port: int) -> str:
    """Which other process listens on a daemon's port, in words; empty if none does, or the daemon itself does too."""
    own = {daemon.process.pid for daemon in record.daemons if daemon.name == name}
    holders = [holder for place in listening_sockets() if place.port == port for holder in holders_of(place)]
    if holders and not any(holder.pid in own for holder in holders):
        return f"port {port} is taken by {holders[0].name} (process {holders[0].pid})"
    return ""


def check_loopback(record: SandboxRecord) -> None:
    """Raise SandboxError if a port of the sandbox is open on an address that is not loopback's."""
    first = record.site.first_port
    ports = range(first, first + ports_needed(record.spec))
    if exposed := [place for place in listening_sockets() if place.port in ports and not place.is_loopback]:
        raise failed(record, f"the sandbox listens on {exposed[0]}, which is not loopback")
