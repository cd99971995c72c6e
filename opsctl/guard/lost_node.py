"""Whether Slurm ends a job because of a lost node, as far as the queue shows it while the job still runs."""

from __future__ import annotations

from dataclasses import replace

from opsctl.guard.before_body import is_row_of
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.model import Job, JobState
from opsctl.ports import Scheduler
from opsctl.state.run_dir import Attempt

NODE_LOST = "NodeDown"
"""Slurm's reason for a job with a node that is down; the same in 22.05, 24.11 and 26.05."""


def find_lost_node(scheduler: Scheduler, attempt: Attempt) -> Job | None:
    """Return the job of an attempt that got TERM, with its final state, if Slurm ends the job for a lost node.

    While the other nodes complete, only the job's reason shows the lost node. Raises Unreachable.
    """
    stop_request = read_stop_request(attempt)
    if stop_request is None or stop_request.reason is not StopKind.TERM:
        return None
    own = [job for job in scheduler.jobs() if is_row_of(job, attempt) and job.reason == NODE_LOST]
    return replace(own[0], state=JobState.NODE_FAIL) if own else None
