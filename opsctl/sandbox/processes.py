"""Which processes belong to a sandbox, and their end. Always by id, never by name."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opsctl.ports import Clock
from opsctl.processes import ProcessId, find_processes, find_with_open_file
from opsctl.sandbox.record import Record

MARKER = "OPSCTL_SANDBOX_OF"
"""In the environment of every daemon, with the run directory: slurmstepds inherit it and outlive their slurmd."""
NODE = "OPSCTL_SANDBOX_NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What `down` did: how many processes there were, and which are still there (`name (pid)`)."""

    count: int
    remaining: tuple[str, ...] = ()


def members(run: Path, record: Record | None, *, node: str | None = None) -> dict[ProcessId, str]:
    """Every process of the sandbox at `run`: daemons, what they started, jobs. With `node`, only that node's."""

    def belongs(env: Mapping[str, str]) -> bool:
        # A user's own shell has our SLURM_CONF too, but only inside a job does it also have a node's name.
        daemon = env.get(MARKER) == str(run) and node in (None, env.get(NODE))
        job = env.get("SLURM_CONF") == str(run / "slurm.conf") and "SLURMD_NODENAME" in env
        return daemon or (job and node in (None, env.get("SLURMD_NODENAME")))

    # The slurmstepds first: one that sees its tasks end before it does reports them, as no power cut lets it.
    found = find_with_open_file("slurmstepd", partial(is_log_of, record, node)) | find_processes(belongs)
    for daemon in record.daemons if record else ():
        if daemon.process.is_alive and node in (None, daemon.name):
            found.setdefault(daemon.process, daemon.name)
    return found


def is_log_of(record: Record | None, node: str | None, path: str) -> bool:
    """Whether `path` is the log of one of the sandbox's slurmds: from 24.11 on a slurmstepd clears its environment, and
    its node's log, which it keeps open, is what tells whose it is."""
    log = Path(path)
    if record is None or log.parent != record.site.home / "log":
        return False
    nodes = record.spec.node_names if node is None else (node,)
    return log.name in {f"slurmd-{name}.log" for name in nodes}


def end_members(run: Path, record: Record | None, clock: Clock, *, grace: float, node: str | None = None) -> Ended:
    """End them: TERM, and KILL after `grace` seconds, again while new ones appear, for ten seconds at most."""
    seen: set[ProcessId] = set()
    soft = clock.monotonic() + grace
    hard = soft + 10
    told: set[ProcessId] = set()
    while (found := members(run, record, node=node)) and clock.monotonic() < hard:
        seen |= found.keys()
        for process in found:
            if clock.monotonic() >= soft:
                process.send(signal.SIGKILL)
            elif process not in told:
                told.add(process)
                process.send(signal.SIGTERM)
        wait_ended(found, clock, until=soft if clock.monotonic() < soft else clock.monotonic() + 0.5)
    return Ended(count=len(seen), remaining=tuple(f"{name} ({process.pid})" for process, name in found.items()))


def wait_ended(processes: Mapping[ProcessId, str], clock: Clock, *, until: float) -> bool:
    """Whether all of them ended before `until`."""
    while any(process.is_alive for process in processes):
        if clock.monotonic() >= until:
            return False
        clock.sleep(0.01)
    return True
