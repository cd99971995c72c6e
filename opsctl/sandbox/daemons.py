"""Start the daemons of a sandbox, in order, and wait until they answer.

The database of slurmdbd is created once per user and version, and copied for later sandboxes.
"""

import hashlib
import logging
import os
import secrets
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import SandboxError
from opsctl.base.ports import Clock, Completed, Runner, TimedOut
from opsctl.base.tables import read_package_table
from opsctl.host.processes import ProcessId
from opsctl.host.system import spawn
from opsctl.sandbox.loopback import is_listening
from opsctl.sandbox.members import MARKER, NODE, wait_ended
from opsctl.sandbox.record import CONTROLLER, DATABASE, MUNGED, SLURMDBD, Places, SandboxDaemon, SandboxRecord
from opsctl.sandbox.slurm_conf import ACCOUNT, CLUSTER, Auth
from opsctl.sandbox.start_failures import check_loopback, describe_port_holder, describe_wrong_address, make_error

log = logging.getLogger(__name__)
MUNGED_OPTIONS: list[str] = read_package_table("sandbox/munged.toml")["options"]
MARIADB_OPTIONS: dict[str, list[str]] = read_package_table("sandbox/mariadb.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a start needs: clock and runner, the user's directories, and the paths of programs by name."""

    clock: Clock
    runner: Runner
    places: Places
    programs: Mapping[str, str]
    patience_s: float = 60
    """The longest time until a daemon answers."""


def start(record: SandboxRecord, name: str, argv: tuple[str, ...]) -> SandboxDaemon:
    """Start one daemon. Raises SandboxError if the daemon ends at once."""
    env = {"SLURM_CONF": str(record.site.conf), MARKER: str(record.site.run)}
    # Without this variable slurmdbd connects to a compiled-in path: the database of the system.
    env["MYSQL_UNIX_PORT"] = str(record.site.home / "mysql.socket")
    if name in record.spec.node_names:
        env[NODE] = name
    env |= loopback_env(record)
    process = ProcessId.of(spawn(argv, log=log_path(record, name), env=env).pid)
    if process is None:
        raise make_error(record, f"{name} did not start", name)
    log.debug("%s: process %d: %s", name, process.pid, shlex.join(argv))
    return SandboxDaemon(name=name, argv=argv, process=process)


def loopback_env(record: SandboxRecord) -> dict[str, str]:
    """Return the environment that keeps a daemon and slurmstepd on loopback. Jobs do not inherit this environment."""
    if not record.site.network.confined:
        return {}
    library = next(path for path in record.site.libraries if path.exists())
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))}


def log_path(record: SandboxRecord, name: str) -> Path:
    """Return the file of a daemon's output. Slurm's daemons write most lines to their LogFile in the same directory."""
    return record.site.home / "log" / f"{name}.out"


def wait_for(
    record: SandboxRecord, clock: Clock, ready: Callable[[], bool], *names: str, limit_s: float, failure: str
) -> None:
    """Wait until `ready`. Raises SandboxError if a named daemon ends, or with `failure` after `limit_s`."""
    daemons = [daemon for name in names if (daemon := record.daemon(name))]
    deadline = clock.monotonic() + limit_s
    while not ready():
        if dead := [daemon.name for daemon in daemons if not daemon.process.is_alive]:
            raise make_error(record, f"{', '.join(dead[:3])} did not start", *dead[:3])
        if clock.monotonic() > deadline:
            raise make_error(record, f"{failure} after {limit_s:g} s", *names[:3])
        clock.sleep(0.02)


def run_in_sandbox(record: SandboxRecord, runner: Runner, *argv: str, timeout: float = 30) -> Completed:
    """Run a Slurm command on this sandbox. A timeout counts as exit code 1."""
    try:
        return runner.run(argv, timeout=timeout, env={"SLURM_CONF": str(record.site.conf)})
    except TimedOut as error:
        return Completed(argv=argv, code=1, out="", err=str(error))


def read_node_states(record: SandboxRecord, runner: Runner) -> dict[str, str]:
    """Return the state of every node, as sinfo prints it; empty if the controller does not answer."""
    argv = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
    completed = run_in_sandbox(record, runner, *argv, timeout=12)
    return dict(line.split(None, 1) for line in completed.out.splitlines()) if completed.code == 0 else {}


def start_munged(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    site = record.site
    if site.auth is not Auth.MUNGE:
        return record
    # munged accepts a socket that other users cannot reach only with --force.
    force = () if site.shared else ("--force",)
    argv = (tools.programs["munged"], *force, *(option.format(site=site) for option in MUNGED_OPTIONS))
    record = start_recorded(record, MUNGED, argv)
    limit_s = min(15, tools.patience_s)
    wait_for(record, tools.clock, site.munge_socket.exists, MUNGED, limit_s=limit_s, failure="munged has no socket")
    return record


def start_controller(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    record = start_recorded(record, CONTROLLER, (tools.programs["slurmctld"], "-D", "-f", str(record.site.conf)))
    wait_listening(record, tools.clock, CONTROLLER, record.site.controller_port, limit_s=tools.patience_s)
    return record


def start_nodes(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    argv = (tools.programs["slurmd"], "-D", "-f", str(record.site.conf), "-N")
    names = record.spec.node_names
    record = record.with_daemon(*(start(record, name, (*argv, name)) for name in names))
    record.save()

    def are_idle() -> bool:
        return set(read_node_states(record, tools.runner).values()) == {"idle"}

    limit_s = tools.patience_s + record.spec.nodes / 4
    wait_for(record, tools.clock, are_idle, CONTROLLER, *names, limit_s=limit_s, failure="not every node is idle")
    check_loopback(record)
    log.info("sandbox %s: %d slurmds started, every node is idle", record.spec.name, record.spec.nodes)
    return record


def start_recorded(record: SandboxRecord, name: str, argv: tuple[str, ...]) -> SandboxRecord:
    """Start a daemon, save the record with the daemon, and return the record."""
    daemon = start(record, name, argv)
    record = record.with_daemon(daemon)
    record.save()
    log.info("sandbox %s: %s started as process %d", record.spec.name, name, daemon.process.pid)
    return record


def wait_listening(record: SandboxRecord, clock: Clock, name: str, port: int, *, limit_s: float = 60) -> None:
    """Wait until a daemon accepts connections on its port.

    Raises SandboxError, at once if the daemon listens on another address.
    """
    address = record.site.network.address

    def is_ready() -> bool:
        # A daemon never changes its address: waiting would not help.
        if wrong_address := describe_wrong_address(record, name, port):
            raise make_error(record, f"{name} {wrong_address}", name)
        # Children of a killed daemon may hold its port for a moment.
        return is_listening(address, port) and not describe_port_holder(record, name, port)

    wait_for(record, clock, is_ready, name, limit_s=limit_s, failure=f"{name} does not listen on {address}:{port}")


def start_accounting(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    """Start the database and slurmdbd, with an account for this user. Raises SandboxError."""
    data = record.site.home / "mysql"
    template = find_template(record, tools)
    if not template.is_dir():
        make_template(record, tools, data, template)
    else:
        shutil.copytree(template, data)
    return start_database(record, tools, data)


def find_template(record: SandboxRecord, tools: Tools) -> Path:
    """Return the path of the template for this user and these versions: other versions may use another format."""
    text = tools.runner.run([tools.programs["mariadbd"], "--version"], timeout=10).out
    key = f"{text}|{record.site.version}|{record.site.user}|{MARIADB_OPTIONS['size']}"
    return tools.places.cache / f"accounting-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def make_template(record: SandboxRecord, tools: Tools, data: Path, template: Path) -> None:
    """Create the database in `data` with slurmdbd's tables, stop both daemons, and store a copy as template."""
    install_database(record, tools, data)
    running = start_database(record, tools, data)
    for words in (("cluster", CLUSTER), ("account", ACCOUNT), ("user", record.site.user, f"account={ACCOUNT}")):
        completed = run_in_sandbox(record, tools.runner, "sacctmgr", "--immediate", "add", *words)
        if completed.code != 0:
            raise SandboxError(f"sacctmgr add {' '.join(words)}: {completed.err.strip() or completed.out.strip()}")
    for name in (SLURMDBD, DATABASE):
        stop_daemon(running, tools, name)
    tools.places.cache.mkdir(parents=True, exist_ok=True)
    copy = template.with_name(f".{template.name}.{secrets.token_hex(4)}")
    shutil.copytree(data, copy)
    try:
        copy.rename(template)
    except OSError:
        shutil.rmtree(copy)  # another sandbox has just stored the same template


def install_database(record: SandboxRecord, tools: Tools, data: Path) -> None:
    options = (option.format(user=record.site.user, data=data) for option in MARIADB_OPTIONS["install"])
    argv = [tools.programs["mariadb-install-db"], *options, *MARIADB_OPTIONS["size"]]
    completed = tools.runner.run(argv, timeout=120)
    if completed.code != 0:
        raise SandboxError(f"mariadb-install-db failed: {(completed.err or completed.out).strip()[-500:]}")


def start_database(record: SandboxRecord, tools: Tools, data: Path) -> SandboxRecord:
    socket = record.site.home / "mysql.socket"
    options = (option.format(site=record.site, data=data) for option in MARIADB_OPTIONS["serve"])
    argv = (tools.programs["mariadbd"], *options, *MARIADB_OPTIONS["size"], *MARIADB_OPTIONS["speed"])
    record = start_recorded(record, DATABASE, argv)
    wait_for(record, tools.clock, socket.exists, DATABASE, limit_s=60, failure="mariadbd has no socket")
    record = start_recorded(record, SLURMDBD, (tools.programs["slurmdbd"], "-D"))
    wait_listening(record, tools.clock, SLURMDBD, record.site.dbd_port)
    return record


def stop_daemon(record: SandboxRecord, tools: Tools, name: str) -> None:
    daemon = record.daemon(name)
    assert daemon is not None
    daemon.process.send(signal.SIGTERM)
    if not wait_ended({daemon.process: name}, tools.clock, until=tools.clock.monotonic() + 30):
        raise make_error(record, f"{name} did not end within 30 s", name)
