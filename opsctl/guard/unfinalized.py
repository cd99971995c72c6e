"""Which attempts are over, by the journal and Slurm's queue. Imports little: all nodes wait for it."""

import re
from collections.abc import Sequence

from opsctl.base.errors import Unreachable
from opsctl.base.model import Job, JobState
from opsctl.base.nodesets import expand_if_list
from opsctl.guard.attempt_record import read_start
from opsctl.launch.train_arrays import TrainSnapshot
from opsctl.slurm.commands import Slurm
from opsctl.state.journal import TrainHistory
from opsctl.state.run_dir import Attempt, RunDir

ATTEMPT = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)", re.ASCII)


def list_unfinalized(run: RunDir, history: TrainHistory) -> list[Attempt]:
    """Return the attempts that are not finalized, in the order of the journal; unjournalled attempts come last."""
    journalled = [name for name in history.started if name not in history.finalized]
    unknown = run.attempts(known={*history.left_out, *history.finalized})
    on_disk = sorted(
        attempt.name for attempt in unknown if ATTEMPT.fullmatch(attempt.name) and not attempt.end.exists()
    )
    return [run.attempt(name) for name in dict.fromkeys([*journalled, *on_disk])]


def is_row_of(job: Job, attempt: Attempt) -> bool:
    """Return whether a row of the queue belongs to the attempt's job, before or after a requeue."""
    return job.array == attempt.array and (
        job.id == attempt.array if attempt.task is None else attempt.task in job.tasks
    )


def _is_over(attempt: Attempt, jobs: Sequence[Job]) -> bool:
    """Return whether the task was started again, or the queue shows no running job of the attempt."""
    requeues = count_requeues(attempt)
    rows = [job for job in jobs if is_row_of(job, attempt)]
    return attempt.has_successor or all(
        job.restarts > requeues or job.state.is_final or job.state.is_waiting for job in rows
    )


def find_headless(run: RunDir, snapshot: TrainSnapshot) -> list[Job]:
    """Return the running tasks whose guard is gone with its node, which Slurm has taken out of the job."""
    headless = []
    for job in (job for job in snapshot.active if job.state is JobState.RUNNING):
        start = read_start(run.attempt(snapshot.history.newest_attempt(job.full_id)))
        nodes = expand_if_list(job.nodes)
        if start and start.node and nodes and start.node not in nodes:
            headless.append(job)
    return headless


def find_final_row(attempt: Attempt, jobs: Sequence[Job]) -> Job | None:
    """Return Slurm's final row of this attempt, not of a later attempt of the same job."""
    requeues = count_requeues(attempt)
    if attempt.has_successor and count_requeues(attempt.successor) == requeues:
        return None  # the task went on in its allocation
    rows = (job for job in jobs if is_row_of(job, attempt) and job.restarts == requeues)
    return next((job for job in rows if job.state.is_final), None)


def count_requeues(attempt: Attempt) -> int:
    """Return how often Slurm had requeued the job before an attempt."""
    start = read_start(attempt)
    return attempt.number if start is None or start.restarts is None else start.restarts


def find_vanished(run: RunDir, snapshot: TrainSnapshot) -> list[str]:
    """Return the arrays of ended, unfinalized attempts whose jobs have left the queue."""
    return list(
        dict.fromkeys(
            attempt.array for attempt in list_ended(run, snapshot) if find_final_row(attempt, snapshot.jobs) is None
        )
    )


def load_past_jobs(slurm: Slurm, arrays: Sequence[str]) -> list[Job]:
    """Return accounting's rows of `arrays`, by one query; empty if accounting does not answer."""
    try:
        return slurm.past(arrays) if arrays else []
    except Unreachable:
        return []


def list_ended(run: RunDir, snapshot: TrainSnapshot) -> list[Attempt]:
    return [attempt for attempt in list_unfinalized(run, snapshot.history) if _is_over(attempt, snapshot.jobs)]
