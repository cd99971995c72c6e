"""Inject faults into slurmd and slurmctld, by process id."""

import logging
import signal
from enum import StrEnum

from opsctl.base.errors import InputError, SandboxError
from opsctl.base.ports import Clock
from opsctl.sandbox.daemons import start, wait_listening
from opsctl.sandbox.members import end_members, find_members, wait_ended
from opsctl.sandbox.record import CONTROLLER, SandboxDaemon, SandboxRecord
from opsctl.sandbox.start_failures import port_of

log = logging.getLogger(__name__)


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
