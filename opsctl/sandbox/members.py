"""Find and end the processes of a sandbox, by process id and never by name."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.ports import Clock
from opsctl.host.processes import ProcessCandidate, ProcessId, find_processes
from opsctl.sandbox.record import SandboxRecord

MARKER = "OPSCTL_SANDBOX_OF"
"""Environment variable of every daemon, with the run directory. slurmstepd inherits it and can outlive slurmd."""
NODE = "OPSCTL_SANDBOX_NODE"
"""Environment variable of every slurmd, with the node's name."""
KILL_TIMEOUT_S = 10.0
"""Time for a process to end after KILL."""
MAX_PROCESSES_LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProcesses:
    """The number of processes that `down` found, and those still alive after SIGKILL, as `name (pid)`."""

    count: int
    remaining: tuple[str, ...] = ()

    def describe_remaining(self) -> str:
        """Return a line such as `7 of 570 processes are still alive after SIGKILL: ...`."""
        more = len(self.remaining) - MAX_PROCESSES_LISTED
        named = ", ".join(self.remaining[:MAX_PROCESSES_LISTED]) + (f" and {more} more" if more > 0 else "")
        verb = "is" if len(self.remaining) == 1 else "are"
        return f"{len(self.remaining)} of {self.count} processes {verb} still alive after SIGKILL: {named}"


def find_members(run: Path, record: SandboxRecord | None, *, node: str | None = None) -> dict[ProcessId, str]:
    """Return every process of the sandbox at `run`: daemons, their children, jobs. With `node`, only of that node."""

    def belongs(process: ProcessCandidate) -> bool:
        if process.name == "slurmstepd" and any(is_slurmd_log(record, node, path) for path in process.open_files()):
            return True
        env = process.environment()
        # SLURM_CONF alone proves nothing: a user's shell outside jobs may have the variable too.
        is_daemon = env.get(MARKER) == str(run) and node in (None, env.get(NODE))
        is_job = env.get("SLURM_CONF") == str(run / "slurm.conf") and "SLURMD_NODENAME" in env
        return is_daemon or (is_job and node in (None, env.get("SLURMD_NODENAME")))

    processes = find_processes(belongs)
    for daemon in record.daemons if record else ():
        if daemon.process.is_alive and node in (None, daemon.name):
            processes.setdefault(daemon.process, daemon.name)
    # slurmstepd comes first: a running slurmstepd would report the end of its tasks, unlike in a power cut.
    return dict(sorted(processes.items(), key=lambda item: item[1] != "slurmstepd"))


def is_slurmd_log(record: SandboxRecord | None, node: str | None, path: str) -> bool:
    """Return whether `path` is the log of a slurmd of the sandbox.

    From Slurm 24.11 on slurmstepd clears its environment. Its open log identifies the sandbox and the node.
    """
    log = Path(path)
    if record is None or log.parent != record.site.home / "log":
        return False
    nodes = record.spec.node_names if node is None else (node,)
    return log.name in {f"slurmd-{name}.log" for name in nodes}


def end_members(
    run: Path, record: SandboxRecord | None, clock: Clock, *, grace: float, node: str | None = None
) -> EndedProcesses:
    """End all members: TERM, then KILL `grace` seconds later, repeatedly while new processes appear.

    `remaining` holds the processes that are alive KILL_TIMEOUT_S after KILL, or twice as long while new processes
    appear.
    """
    members = find_members(run, record, node=node)
    all_members = dict(members)
    terminated: set[ProcessId] = set()
    killed: set[ProcessId] = set()
    kill_at = clock.monotonic() + grace
    while members:
        is_late = clock.monotonic() >= kill_at
        for process in members:
            if is_late:
                process.send(signal.SIGKILL)
                killed.add(process)
            elif process not in terminated:
                process.send(signal.SIGTERM)
                terminated.add(process)
        wait_ended(members, clock, until=clock.monotonic() + 0.5 if is_late else kill_at)
        members = find_members(run, record, node=node)
        all_members |= members
        overdue_s = clock.monotonic() - kill_at - KILL_TIMEOUT_S
        if is_late and (overdue_s >= KILL_TIMEOUT_S or (overdue_s >= 0 and killed.issuperset(members))):
            break
    remaining = tuple(f"{name} ({process.pid})" for process, name in members.items())
    return EndedProcesses(count=len(all_members), remaining=remaining)


def wait_ended(processes: Mapping[ProcessId, str], clock: Clock, *, until: float) -> bool:
    """Return whether all processes ended before `until`, a monotonic time."""
    while any(process.is_alive for process in processes):
        if clock.monotonic() >= until:
            return False
        clock.sleep(0.01)
    return True
