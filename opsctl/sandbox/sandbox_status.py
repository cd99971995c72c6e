"""How a sandbox is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.host.processes import memory_of
from opsctl.ports import Clock, Runner
from opsctl.sandbox.daemons import node_states
from opsctl.sandbox.members import members
from opsctl.sandbox.record import CONTROLLER, SandboxRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """`nodes` is empty when the controller does not answer; `dead` names the daemons that should run and do not."""

    name: str
    is_up: bool
    nodes: Mapping[str, str]
    dead: tuple[str, ...]
    processes: int
    memory_bytes: int
    uptime_s: float
    conf: str


def is_up(record: SandboxRecord) -> bool:
    """It once was all up, and its controller still runs. A node that a fault took away does not make it less up."""
    controller = record.daemon(CONTROLLER)
    return record.complete and controller is not None and controller.process.is_alive


def read_sandbox_status(record: SandboxRecord, clock: Clock, runner: Runner) -> SandboxStatus:
    up = is_up(record)
    found = members(record.site.run, record)
    return SandboxStatus(
        name=record.spec.name,
        is_up=up,
        nodes=node_states(record, runner) if up else {},
        dead=tuple(daemon.name for daemon in record.daemons if not daemon.process.is_alive),
        processes=len(found),
        memory_bytes=memory_of(found),
        uptime_s=(clock.now() - record.started).total_seconds(),
        conf=str(record.site.conf),
    )
