"""Faults: the table of shell lines for drills, the race and the soak; and faults of slurmd and slurmctld."""

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from opsctl.base.errors import InputError, SandboxError
from opsctl.base.ports import Clock, Runner
from opsctl.base.tables import PACKAGE, read_package_table
from opsctl.sandbox.daemons import start, wait_listening
from opsctl.sandbox.members import end_members, find_members, wait_ended
from opsctl.sandbox.record import CONTROLLER, SandboxDaemon, SandboxRecord
from opsctl.sandbox.start_failures import port_of

log = logging.getLogger(__name__)
SHELL = PACKAGE / "sandbox" / "faults.sh"


class FaultKind(StrEnum):
    KILL = "kill"
    """SIGKILL only the daemon; jobs on the node continue."""
    STOP = "stop"
    """SIGSTOP: the daemon exists and does not answer."""
    RESUME = "resume"
    RESTART = "restart"
    """End the daemon if running, and start the daemon again."""
    CRASH = "crash"
    """Power loss: the daemon and all processes of the node end at once."""


def inject(record: SandboxRecord, target: str, action: FaultKind, clock: Clock) -> None:
    """Inject the fault and wait until done. Raises InputError for an unknown target, SandboxError for a failure."""
    daemon = find_daemon(record, target)
    if action is FaultKind.RESTART:
        restart(record, daemon, clock)
    elif not daemon.process.is_alive:
        raise SandboxError(f"{target} does not run, so there is nothing to {action}", hint=f"restart {target} first")
    elif action is FaultKind.CRASH:
        crash(record, target, daemon, clock)
    elif action is FaultKind.KILL:
        kill(daemon, clock)
    else:
        daemon.process.send(signal.SIGSTOP if action is FaultKind.STOP else signal.SIGCONT)
    log.info("sandbox %s: fault %s of %s done", record.spec.name, action.value, target)


def find_daemon(record: SandboxRecord, target: str) -> SandboxDaemon:
    daemon = record.daemon(CONTROLLER if target == "controller" else target)
    if daemon is None or (target != "controller" and target not in record.spec.node_names):
        names = record.spec.node_names
        hint = f"one of {names[0]} to {names[-1]}, or: controller"
        raise InputError(f"there is no {target!r} in sandbox {record.spec.name!r}", hint=hint)
    return daemon


def kill(daemon: SandboxDaemon, clock: Clock) -> None:
    daemon.process.send(signal.SIGKILL)
    if not wait_ended({daemon.process: daemon.name}, clock, until=clock.monotonic() + 10):
        raise SandboxError(f"{daemon.name} ({daemon.process.pid}) is still alive 10 s after SIGKILL")


def crash(record: SandboxRecord, target: str, daemon: SandboxDaemon, clock: Clock) -> None:
    # The daemon ends first: a running daemon would report the end of its jobs.
    kill(daemon, clock)
    if target == "controller":
        return
    # A process that outlived another for a moment would record its end.
    for process in find_members(record.site.run, record, node=target):
        process.send(signal.SIGSTOP)
    ended = end_members(record.site.run, record, clock, grace=0, node=target)
    if ended.remaining:
        raise SandboxError(f"{target}: {ended.describe_remaining()}")


def restart(record: SandboxRecord, daemon: SandboxDaemon, clock: Clock) -> None:
    if daemon.process.is_alive:
        daemon.process.send(signal.SIGTERM)
        daemon.process.send(signal.SIGCONT)
        if not wait_ended({daemon.process: daemon.name}, clock, until=clock.monotonic() + 10):
            kill(daemon, clock)
    record = record.with_daemon(start(record, daemon.name, daemon.argv))
    record.save()
    port = port_of(record, daemon.name)
    assert port is not None, "only nodes and the controller are restarted"
    wait_listening(record, clock, daemon.name, port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and what opsctl has to do about it; fault_table.toml explains the fields."""

    name: str
    says: str
    source: str
    touches: str
    inject: str
    undo: str = "true"
    until_noticed: bool = False
    lasts_s: float = 0
    begins_s: float = 0
    steps: int = 15
    limit_s: float = 120
    train: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only_named: bool = False
    causes: tuple[str, ...] = ()
    action: tuple[str, ...] = ("",)
    alerts: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    resumes: bool = False


def read_faults() -> dict[str, Fault]:
    """Return every fault, by its name."""
    return {name: Fault(name=name, **row) for name, row in read_package_table("sandbox/fault_table.toml").items()}


def run_lines(lines: str, variables: Mapping[str, str], runner: Runner) -> None:
    """Run the lines with which a fault begins or ends. Raises SandboxError if they fail."""
    done = runner.run(("bash", "-c", f'. "$0" && {lines}', str(SHELL)), timeout=60, env=variables)
    if done.code:
        raise SandboxError(f"{lines}: {done.err.strip() or f'exit code {done.code}'}")
