"""The present status of a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.base.ports import Clock, Runner
from opsctl.host.processes import memory_of
from opsctl.sandbox.daemons import read_node_states
from opsctl.sandbox.members import find_members
from opsctl.sandbox.record import CONTROLLER, SandboxRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """The present status of a sandbox."""

    name: str
    is_up: bool
    nodes: Mapping[str, str]
    """The state of every node; empty if the controller does not answer."""
    dead: tuple[str, ...]
    """The daemons that have ended."""
    processes: int
    memory_bytes: int
    uptime_s: float
    conf: str


def is_up(record: SandboxRecord) -> bool:
    """Return whether the sandbox started completely and its controller runs. Nodes may be down."""
    controller = record.daemon(CONTROLLER)
    return record.complete and controller is not None and controller.process.is_alive


def read_sandbox_status(record: SandboxRecord, clock: Clock, runner: Runner) -> SandboxStatus:
    """Return the status of a sandbox. Takes up to 12 s if the controller does not answer."""
    has_controller = is_up(record)
    processes = find_members(record.site.run, record)
    return SandboxStatus(
        name=record.spec.name,
        is_up=has_controller,
        nodes=read_node_states(record, runner) if has_controller else {},
        dead=tuple(daemon.name for daemon in record.daemons if not daemon.process.is_alive),
        processes=len(processes),
        memory_bytes=memory_of(processes),
        uptime_s=(clock.now() - record.started).total_seconds(),
        conf=str(record.site.conf),
    )
