"""Attempts that nobody has finalized: which of them are over, and how the guard finalizes them before its own.

Imports little: all nodes wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opsctl.base.errors import Unreachable
from opsctl.base.model import Job
from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.stop_request import StopKind
from opsctl.guard.tolerated import Tolerated
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.settings.loader import GuardSettings
from opsctl.slurm.commands import Slurm
from opsctl.state.journal import TrainHistory, replay
from opsctl.state.run_dir import Attempt, RunDir

if TYPE_CHECKING:
    from opsctl.guard.end_record import FinishedAttempt
    from opsctl.guard.node_care import NodeCare

ATTEMPT = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)", re.ASCII)


def list_unfinalized(run: RunDir, history: TrainHistory) -> list[Attempt]:
    """Return the attempts that are not finalized, in the order of the journal; unjournalled attempts come last."""
    journalled = [name for name in history.started if name not in history.finalized]
    on_disk = sorted(
        attempt.name for attempt in run.attempts() if ATTEMPT.fullmatch(attempt.name) and not attempt.end.exists()
    )
    return [run.attempt(name) for name in dict.fromkeys([*journalled, *on_disk])]


def is_row_of(job: Job, attempt: Attempt) -> bool:
    """Return whether a row of the queue belongs to the attempt's job, before or after a requeue."""
    return job.array == attempt.array and (
        job.id == attempt.array if attempt.task is None else attempt.task in job.tasks
    )


def _is_over(attempt: Attempt, jobs: Sequence[Job]) -> bool:
    """Return whether the queue shows no running job of the attempt: none, a later attempt, or an ended job."""
    rows = [job for job in jobs if is_row_of(job, attempt)]
    return all(job.restarts > attempt.restart or job.state.is_final or job.state.is_waiting for job in rows)


def find_final_row(attempt: Attempt, jobs: Sequence[Job]) -> Job | None:
    """Return Slurm's final row of this attempt, not of a later attempt of the same job."""
    rows = (job for job in jobs if is_row_of(job, attempt) and job.restarts == attempt.restart and job.state.is_final)
    return next(rows, None)


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


@dataclass(slots=True, kw_only=True)
class EarlierAttempts:
    """The attempts before the own one."""

    arrays: TrainArrays
    rules: GuardSettings
    own: Attempt
    env: Mapping[str, str]
    """The environment of the batch job."""
    make_care: Callable[[], NodeCare]
    tolerated: Tolerated
    is_open: bool = True
    """Whether an earlier attempt may still have to be finalized."""

    def finalize(self) -> list[FinishedAttempt]:
        """Finalize those that have ended. Slurm is not asked if the journal and the files show that none is left."""
        with self.tolerated("finalizing earlier attempts"):
            if self._is_all_finalized():
                self.is_open = False
                return []
            from opsctl.guard.finalize import finalize_ended  # noqa: PLC0415 (after a failure only)

            snapshot, own = self.arrays.check(), self.own.name
            finalized = finalize_ended(self.arrays, self.rules, snapshot, own=own, care=self.make_care())
            done = {own, *snapshot.history.finalized, *(finished.attempt for finished in finalized)}
            self.is_open = not done.issuperset(snapshot.history.started)
            return finalized
        return []

    def find_reason_to_leave(self, finalized: list[FinishedAttempt]) -> tuple[StopKind, str] | None:
        """Return why the own body must not run: the end of one is final, or excludes one of our nodes."""
        if not finalized:
            return None
        from opsctl.guard.action import find_reason_to_leave  # noqa: PLC0415 (after a failure only)

        return find_reason_to_leave(finalized, expand_nodes(self.env))

    def _is_all_finalized(self) -> bool:
        """Whether every earlier attempt is finalized, and no submission is of unknown success."""
        history = replay(self.arrays.journal.events())
        unfinalized = list_unfinalized(self.arrays.run, history)
        return not history.pending and all(attempt.name == self.own.name for attempt in unfinalized)
