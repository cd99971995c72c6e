"""Which nodes a job that still runs has lost: by Slurm's queue, or by a step that does not reach the node.

After a failed rank, Slurm ends the other ranks at once, but waits for ranks on a dead node, which Slurm itself notices
after SlurmdTimeout, 5 minutes by default.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.model import Job, JobState
from opsctl.base.nodesets import expand_if_list
from opsctl.base.ports import Clock, Runner, TimedOut
from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.guard.unfinalized import is_row_of
from opsctl.slurm.commands import Slurm
from opsctl.slurm.job_environment import own_job
from opsctl.state.files import read_number
from opsctl.state.run_dir import Attempt

PROBE_TIMEOUTS_S = (2.0, 3.0, 10.0, 20.0)
"""A step on a few nodes takes 0.3 s, one on a thousand nodes 3 s. If no node answers, the machine or Slurm is busy."""
NODE_LOST = "NodeDown"
"""Slurm's reason for a job with a node that is down; the same in 22.05, 24.11 and 26.05."""
PROBE_AFTER_S = 0.5
"""Before that, Slurm is about to end the other ranks."""
PROBE_LIMIT_S = 8.0
"""Also after a shorter grace, ranks get time until the probe has ended: a restart must know lost nodes."""


def find_missing_nodes(runner: Runner, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of this start that two steps one after the other did not reach. Raises nothing.

    One step may be late on a node that is busy, and a lost node is excluded from queued tasks.
    """
    from opsctl.slurm.steps import find_silent_nodes  # noqa: PLC0415 (after a failure only)

    nodes = probed = expand_nodes(env)
    suspects: tuple[str, ...] = ()
    try:
        for timeout_s in PROBE_TIMEOUTS_S:
            silent = find_silent_nodes(runner, own_job(env), probed, timeout=timeout_s)
            if silent is None:
                continue
            if suspects or not silent:
                return silent
            suspects = silent
            # A node that has answered shows whether Slurm starts the next step.
            probed = [*suspects, next(node for node in nodes if node not in suspects)]
        return ()
    except (OpsctlError, OSError, TimedOut):
        return ()


def find_removed_nodes(slurm: Slurm, attempt: Attempt, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of this start that Slurm has taken out of the running job.

    A job that completes is no evidence: Slurm lists only the nodes that still complete.
    """
    rows = [job for job in slurm.jobs() if is_row_of(job, attempt) and job.state is JobState.RUNNING]
    remaining = expand_if_list(rows[0].nodes) if rows else ()
    return tuple(node for node in expand_nodes(env) if node not in remaining) if remaining else ()


def find_lost_node(slurm: Slurm, attempt: Attempt) -> Job | None:
    """Return the job of an attempt that got TERM, with its final state, if Slurm ends the job for a lost node.

    While the other nodes complete, only the job's reason shows the lost node. Raises Unreachable.
    """
    stop_request = read_stop_request(attempt)
    if stop_request is None or stop_request.reason is not StopKind.TERM:
        return None
    own = [job for job in slurm.jobs() if is_row_of(job, attempt) and job.reason == NODE_LOST]
    # Of a job that completes, Slurm lists only the nodes that still complete.
    return replace(own[0], state=JobState.NODE_FAIL, nodes="") if own else None


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Decides when the ranks that outlive a failed rank have had enough time."""

    first_exit: Path
    """The file with the exit code of the rank that failed first. It appears when a rank fails."""
    grace_s: float
    clock: Clock
    find_missing_nodes: Callable[[], tuple[str, ...]]
    """Returns the nodes of the job that do not answer. Called once per start of the ranks, in a thread."""
    lost_nodes: tuple[str, ...] = ()
    """The nodes that did not answer."""
    _since_s: float | None = None
    _thread: threading.Thread | None = None

    def are_late(self) -> bool:
        """Return whether a rank failed more than `grace_s` ago, counted from the first call that saw the failure.

        Ranks on a node that does not answer get no grace.
        """
        if self.code is None:
            # The body removes an earlier file before it starts the ranks.
            self._since_s, self._thread, self.lost_nodes = None, None, ()
            return False
        if self._since_s is None:
            self._since_s = self.clock.monotonic()
        past_s = self.clock.monotonic() - self._since_s
        if past_s > PROBE_AFTER_S and self._thread is None:
            self._thread = threading.Thread(target=self._probe, daemon=True)
            self._thread.start()
        is_probing = self._thread is not None and self._thread.is_alive() and past_s < PROBE_LIMIT_S
        return bool(self.lost_nodes) or (past_s > self.grace_s and not is_probing)

    def _probe(self) -> None:
        lost_nodes = self.find_missing_nodes()
        if self._thread is threading.current_thread():  # the body may have started the ranks again
            self.lost_nodes = lost_nodes

    @property
    def why(self) -> str:
        """Why the ranks get no more time."""
        return f"{', '.join(self.lost_nodes)} did not answer" if self.lost_nodes else f"{self.grace_s:g} s have passed"

    @property
    def code(self) -> int | None:
        """The exit code of the rank that failed first; None if no rank has failed."""
        return read_number(self.first_exit)
