"""Starting the processes of a sandbox, in order, and waiting until each can be used."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.host.processes import ProcessId
from opsctl.host.system import spawn
from opsctl.ports import Clock, Completed, Runner, TimedOut
from opsctl.sandbox.failures import check_loopback, failed, find_misplaced, find_taken
from opsctl.sandbox.loopback import is_listening
from opsctl.sandbox.members import MARKER, NODE
from opsctl.sandbox.record import CONTROLLER, MUNGED, Places, SandboxDaemon, SandboxRecord
from opsctl.sandbox.slurm_conf import Auth

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What starting takes: the world's seams, the user's directories, and where each program is."""

    clock: Clock
    runner: Runner
    places: Places
    programs: Mapping[str, str]
    patience_s: float = 60
    """What a daemon may take until it can be used, at most."""


def start(record: SandboxRecord, name: str, argv: tuple[str, ...]) -> SandboxDaemon:
    """Start one daemon and say who it is."""
    env = {"SLURM_CONF": str(record.site.conf), MARKER: str(record.site.run)}
    # The database is asked for at a compiled-in path otherwise, and that is the system's own.
    env["MYSQL_UNIX_PORT"] = str(record.site.home / "mysql.socket")
    if name in record.spec.node_names:
        env[NODE] = name
    env |= confinement(record)
    process = ProcessId.of(spawn(argv, log=log_of(record, name), env=env).pid)
    if process is None:
        raise failed(record, f"{name} did not start", name)
    log.debug("%s: process %d: %s", name, process.pid, shlex.join(argv))
    return SandboxDaemon(name=name, argv=argv, process=process)


def confinement(record: SandboxRecord) -> dict[str, str]:
    """The environment that keeps a daemon, and what slurmd starts of Slurm, on loopback. Jobs do not inherit it."""
    if not record.site.network.confined:
        return {}
    library = next(path for path in record.site.libraries if path.exists())
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))}


def log_of(record: SandboxRecord, name: str) -> Path:
    """Where a daemon's own output goes; Slurm's daemons write most to their LogFile beside it."""
    return record.site.home / "log" / f"{name}.out"


def wait_for(
    record: SandboxRecord, clock: Clock, ready: Callable[[], bool], *names: str, limit: float, what: str
) -> None:
    """Until `ready`, while the named daemons live, for `limit` seconds at most."""
    daemons = [daemon for name in names if (daemon := record.daemon(name))]
    deadline = clock.monotonic() + limit
    while not ready():
        if dead := [daemon.name for daemon in daemons if not daemon.process.is_alive]:
            raise failed(record, f"{', '.join(dead[:3])} did not start", *dead[:3])
        if clock.monotonic() > deadline:
            raise failed(record, f"{what} after {limit:g} s", *names[:3])
        clock.sleep(0.02)


def ask(record: SandboxRecord, runner: Runner, *argv: str, timeout: float = 30) -> Completed:
    """Ask this sandbox's Slurm; no answer in time reads as a failed command."""
    try:
        return runner.run(argv, timeout=timeout, env={"SLURM_CONF": str(record.site.conf)})
    except TimedOut as error:
        return Completed(argv=argv, code=1, out="", err=str(error))


def node_states(record: SandboxRecord, runner: Runner) -> dict[str, str]:
    """Each node's state in Slurm's words; empty when the controller does not answer."""
    completed = ask(record, runner, "sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", timeout=12)
    return dict(line.split(None, 1) for line in completed.out.splitlines()) if completed.code == 0 else {}


def start_munged(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    site = record.site
    if site.auth is not Auth.MUNGE:
        return record
    # munged refuses a socket that not everybody can reach, unless it is forced to take it. Without an origin it looks
    # up the host name, and waits for as long as DNS takes.
    force = () if site.shared else ("--force",)
    argv = (
        tools.programs["munged"], *force, "--origin=127.0.0.1", "--foreground", "--num-threads=4",
        f"--socket={site.munge_socket}", f"--key-file={site.home}/munge.key", f"--pid-file={site.home}/munged.pid",
        f"--seed-file={site.home}/munged.seed",
    )  # fmt: skip
    record = started(record, MUNGED, argv)
    wait_for(
        record,
        tools.clock,
        site.munge_socket.exists,
        MUNGED,
        limit=min(15, tools.patience_s),
        what="munged has no socket",
    )
    return record


def start_controller(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    record = started(record, CONTROLLER, (tools.programs["slurmctld"], "-D", "-f", str(record.site.conf)))
    wait_listening(record, tools.clock, CONTROLLER, record.site.controller_port, limit=tools.patience_s)
    return record


def start_nodes(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    argv = (tools.programs["slurmd"], "-D", "-f", str(record.site.conf), "-N")
    names = record.spec.node_names
    record = record.with_daemon(*(start(record, name, (*argv, name)) for name in names))
    record.save()

    def idle() -> bool:
        return set(node_states(record, tools.runner).values()) == {"idle"}

    limit = tools.patience_s + record.spec.nodes / 4
    wait_for(record, tools.clock, idle, CONTROLLER, *names, limit=limit, what="not every node is idle")
    check_loopback(record)
    log.info("sandbox %s: %d slurmds started, every node is idle", record.spec.name, record.spec.nodes)
    return record


def started(record: SandboxRecord, name: str, argv: tuple[str, ...]) -> SandboxRecord:
    """With this daemon, started and written down."""
    daemon = start(record, name, argv)
    record = record.with_daemon(daemon)
    record.save()
    log.info("sandbox %s: %s started as process %d", record.spec.name, name, daemon.process.pid)
    return record


def wait_listening(record: SandboxRecord, clock: Clock, name: str, port: int, *, limit: float = 60) -> None:
    """Until a daemon accepts connections on its port. Raises at once if it listens on another address."""
    address = record.site.network.address

    def ready() -> bool:
        # A daemon that listens elsewhere stays there: nothing is gained by waiting.
        if elsewhere := find_misplaced(record, name, port):
            raise failed(record, f"{name} {elsewhere}", name)
        # What a killed daemon had started may hold its port for a moment, and answers for nobody.
        return is_listening(address, port) and not find_taken(record, name, port)

    wait_for(record, clock, ready, name, limit=limit, what=f"{name} does not listen on {address}:{port}")
