"""Whether a job that still runs has lost a node: by Slurm's queue, or by a step that does not reach the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opsctl.base.errors import OpsctlError
from opsctl.base.model import Job, JobState
from opsctl.base.ports import Runner
from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.guard.unfinalized import is_row_of
from opsctl.slurm.commands import Slurm
from opsctl.slurm.job_environment import own_job
from opsctl.state.run_dir import Attempt

PROBE_TIMEOUT_S = 8.0
"""A step of a few processes starts within 3 s on a thousand nodes."""
NODE_LOST = "NodeDown"
"""Slurm's reason for a job with a node that is down; the same in 22.05, 24.11 and 26.05."""


def find_missing_node(runner: Runner, env: Mapping[str, str]) -> bool:
    """Return whether a node of this job certainly does not answer. Raises nothing."""
    from opsctl.slurm.steps import misses_a_node  # noqa: PLC0415 (after a failure only)

    try:
        return misses_a_node(runner, own_job(env), len(expand_nodes(env)), timeout=PROBE_TIMEOUT_S)
    except (OpsctlError, KeyError, OSError):
        return False


def find_lost_node(slurm: Slurm, attempt: Attempt) -> Job | None:
    """Return the job of an attempt that got TERM, with its final state, if Slurm ends the job for a lost node.

    While the other nodes complete, only the job's reason shows the lost node. Raises Unreachable.
    """
    stop_request = read_stop_request(attempt)
    if stop_request is None or stop_request.reason is not StopKind.TERM:
        return None
    own = [job for job in slurm.jobs() if is_row_of(job, attempt) and job.reason == NODE_LOST]
    return replace(own[0], state=JobState.NODE_FAIL) if own else None
