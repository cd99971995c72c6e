"""Find and end the processes of a sandbox. Always by id, never by name."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.host.processes import Candidate, ProcessId, find_processes
from opsctl.ports import Clock
from opsctl.sandbox.record import SandboxRecord

MARKER = "OPSCTL_SANDBOX_OF"
"""In the environment of every daemon, with the run directory: slurmstepds inherit it and outlive their slurmd."""
NODE = "OPSCTL_SANDBOX_NODE"
KILL_TIMEOUT_S = 10.0
"""Time for a process to end after KILL."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProcesses:
    """The number of processes that `down` found, and those still alive after SIGKILL, as `name (pid)`."""

    count: int
    remaining: tuple[str, ...] = ()

    def describe_remaining(self) -> str:
        """`7 of 570 processes are still alive after SIGKILL: ...`."""
        more = len(self.remaining) - MAX_NAMED
        named = ", ".join(self.remaining[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        verb = "is" if len(self.remaining) == 1 else "are"
        return f"{len(self.remaining)} of {self.count} processes {verb} still alive after SIGKILL: {named}"


def members(run: Path, record: SandboxRecord | None, *, node: str | None = None) -> dict[ProcessId, str]:
    """Every process of the sandbox at `run`: daemons, what they started, jobs. With `node`, only that node's."""

    def belongs(process: Candidate) -> bool:
        if process.name == "slurmstepd" and any(is_log_of(record, node, path) for path in process.open_files()):
            return True
        env = process.environment()
        # A user's own shell has our SLURM_CONF too, but only inside a job does it also have a node's name.
        daemon = env.get(MARKER) == str(run) and node in (None, env.get(NODE))
        job = env.get("SLURM_CONF") == str(run / "slurm.conf") and "SLURMD_NODENAME" in env
        return daemon or (job and node in (None, env.get("SLURMD_NODENAME")))

    found = find_processes(belongs)
    for daemon in record.daemons if record else ():
        if daemon.process.is_alive and node in (None, daemon.name):
            found.setdefault(daemon.process, daemon.name)
    # The slurmstepds first: one that sees its tasks end before it does reports them, as no power cut lets it.
    return dict(sorted(found.items(), key=lambda item: item[1] != "slurmstepd"))


def is_log_of(record: SandboxRecord | None, node: str | None, path: str) -> bool:
    """Whether `path` is the log of one of the sandbox's slurmds: from 24.11 on a slurmstepd clears its environment, and
    its node's log, which it keeps open, is what tells whose it is."""
    log = Path(path)
    if record is None or log.parent != record.site.home / "log":
        return False
    nodes = record.spec.node_names if node is None else (node,)
    return log.name in {f"slurmd-{name}.log" for name in nodes}


def end_members(
    run: Path, record: SandboxRecord | None, clock: Clock, *, grace: float, node: str | None = None
) -> EndedProcesses:
    """End them: TERM, and KILL `grace` seconds after the first TERM, again while new ones appear.

    `remaining` are those that were sent KILL and are alive KILL_TIMEOUT_S later. While new ones appear, twice as long.
    """
    found = members(run, record, node=node)
    all_members = dict(found)
    terminated: set[ProcessId] = set()
    killed: set[ProcessId] = set()
    soft = clock.monotonic() + grace
    while found:
        late = clock.monotonic() >= soft
        for process in found:
            if late:
                process.send(signal.SIGKILL)
                killed.add(process)
            elif process not in terminated:
                process.send(signal.SIGTERM)
                terminated.add(process)
        wait_ended(found, clock, until=clock.monotonic() + 0.5 if late else soft)
        found = members(run, record, node=node)
        all_members |= found
        overdue = clock.monotonic() - soft - KILL_TIMEOUT_S
        if late and (overdue >= KILL_TIMEOUT_S or (overdue >= 0 and killed.issuperset(found))):
            break
    return EndedProcesses(
        count=len(all_members), remaining=tuple(f"{name} ({process.pid})" for process, name in found.items())
    )


def wait_ended(processes: Mapping[ProcessId, str], clock: Clock, *, until: float) -> bool:
    """Whether all of them ended before `until`."""
    while any(process.is_alive for process in processes):
        if clock.monotonic() >= until:
            return False
        clock.sleep(0.01)
    return True
