"""The job arrays of one train: read their state; hold, release, cancel, and exclude nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from opsctl.base.errors import InputError
from opsctl.base.model import Job
from opsctl.base.nodesets import nodeset, union
from opsctl.host.system import user_name
from opsctl.slurm.commands import Slurm
from opsctl.state.events import Cancelled, Cancelling, Event, Excluded, Held, HoldReleased, Readmitted, Submitted
from opsctl.state.journal import Journal, TrainHistory, replay
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import RunDir

if TYPE_CHECKING:
    from ClusterShell.NodeSet import NodeSet

UNNAMED = "nobody"
"""Slurm's word for a user whose name is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSnapshot:
    """The state of one train at one moment: its journal, and its rows of Slurm's queue."""

    history: TrainHistory
    jobs: tuple[Job, ...]
    """Rows of the queue that carry a nonce of the train, the oldest array first."""
    adopted: tuple[Job, ...]
    """Rows of a submission that the journal does not record as submitted."""
    duplicates: tuple[Job, ...]
    """Rows of the later array, where one submission arrived twice."""
    strangers: tuple[Job, ...]
    """Rows with the id of an array of the train but another comment: a killed controller reuses ids."""
    copied: tuple[Job, ...] = ()
    """Rows of other users that carry the train's comment."""

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_waiting]

    @property
    def waiting_tasks(self) -> int:
        return sum(len(job.tasks) or 1 for job in self.waiting)

    @property
    def active(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_active]

    @property
    def is_queued(self) -> bool:
        return bool(self.waiting or self.active)


def take_snapshot(run: RunDir, journal: Journal, jobs: Sequence[Job]) -> TrainSnapshot:
    """Find the rows of the train by the nonce in their comment and by their user, never by id or name alone.

    Comments are public: another user's job may carry a copy. Such a row is a stranger's.
    """
    history = replay(journal.events())
    known = {f"opsctl:{run.name}:{array.nonce}" for array in history.arrays.values()}
    pending = {f"opsctl:{run.name}:{nonce}" for nonce in history.pending}
    ours = _users(run) if jobs else set()
    carriers = [job for job in jobs if job.comment in known | pending]
    own = [job for job in carriers if job.user in ours or _is_unnamed(job, history)]
    copied = [job for job in carriers if job not in own]
    reused = [job for job in jobs if job.array in history.arrays and job.comment not in known | pending]
    arrays = _array_by_comment(history, own)
    return TrainSnapshot(
        history=history,
        jobs=tuple(sorted(own, key=lambda job: (int(job.array), job.tasks))),
        adopted=tuple(job for job in own if job.comment in pending and job.array == arrays[job.comment]),
        duplicates=tuple(job for job in own if job.array != arrays[job.comment] and not job.state.is_final),
        strangers=tuple(reused),
        copied=tuple(copied),
    )


def _users(run: RunDir) -> set[str]:
    """Return the names that Slurm may show for the owner of the train. Raises OSError."""
    uid = run.path.stat().st_uid
    return {user_name(uid), str(uid)}


def _is_unnamed(job: Job, history: TrainHistory) -> bool:
    """Whether Slurm could not look up the user of a journalled array, as while a directory service is away."""
    return job.array in history.arrays and (job.user in {"", UNNAMED} or job.user.isdecimal())


def _array_by_comment(history: TrainHistory, own: Sequence[Job]) -> dict[str, str]:
    """Choose one array for each comment: a running array, else a journalled array, else the first."""
    known = set(history.arrays)
    order = sorted(own, key=lambda job: (job.state.is_active, job.array in known, -int(job.array)))
    return {job.comment: job.array for job in order}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArrays:
    """The queued and running arrays of one train.

    All methods are idempotent. They act on the last array first, because the next array starts as soon as the array
    before it ends.
    """

    run: RunDir
    journal: Journal
    slurm: Slurm

    def check(self, jobs: Sequence[Job] | None = None) -> TrainSnapshot:
        """Return a snapshot of the train, and journal submissions that only Slurm knew of.

        Asks Slurm for its queue unless `jobs` is the whole queue.
        """
        jobs = self.slurm.jobs() if jobs is None else jobs
        snapshot = take_snapshot(self.run, self.journal, jobs)
        if not (snapshot.adopted and self.run.is_ours):
            return snapshot
        for array, job in {job.array: job for job in snapshot.adopted}.items():
            self.note(Submitted(nonce=job.comment.rpartition(":")[2], array=array))
        return replace(take_snapshot(self.run, self.journal, jobs), adopted=snapshot.adopted)

    def note(self, event: Event) -> None:
        """Journal an event. Does nothing for a team member, whose switch or request is the record."""
        if self.run.is_ours:
            self.journal.append(event)

    def drop_duplicates(self, snapshot: TrainSnapshot) -> list[str]:
        """Cancel the queued tasks of duplicate submissions; return their arrays. Running tasks go on."""
        arrays = list_arrays([job for job in snapshot.duplicates if job.state.is_waiting])
        for array in arrays:
            self.slurm.cancel(array, queued_only=True)
            self.note(Cancelled(jobs=(array,), reason=Reason(kind=ReasonKind.DUPLICATE)))
        return arrays

    def hold(self, reason: Reason) -> list[str]:
        """Hold all queued tasks; return their arrays, the last first."""
        arrays = list_arrays(self.check().waiting)
        for array in arrays:
            self.slurm.hold(array)
        # After Slurm: an event without its hold would call a running train held. A crash in between leaves a hold
        # without an event, which the next call of this method journals.
        if arrays:
            self.note(Held(jobs=tuple(arrays), reason=reason))
        return arrays

    def release(self, why: str = "") -> list[str]:
        """Release all queued tasks; return their arrays, the last first."""
        snapshot = self.check()
        arrays = list_arrays(snapshot.waiting)
        for array in arrays:
            self.slurm.release(array)
        if arrays or snapshot.history.held or snapshot.history.repair:
            self.note(HoldReleased(jobs=tuple(arrays), why=why))
        return arrays

    def cancel(self, reason: Reason, *, queued_only: bool = False) -> list[str]:
        """Cancel queued tasks, then running tasks unless `queued_only`; return the arrays.

        Includes the arrays of an earlier call that was interrupted before it journalled them.
        """
        snapshot = self.check()
        arrays = list_arrays(snapshot.waiting)
        running = [] if queued_only else list_arrays(snapshot.active)
        interrupted = snapshot.history.cancelling
        earlier = interrupted.jobs if interrupted and interrupted.task is None else ()
        current = dict.fromkeys([*arrays, *running])
        cancelled = tuple(dict.fromkeys([*earlier, *current]))
        # Before Slurm: cancelled tasks leave the queue at once, so that after a crash only this event names them.
        if current:
            self.note(Cancelling(jobs=cancelled, reason=reason))
        for array in arrays:
            self.slurm.cancel(array, queued_only=True)
        for array in running:
            self.slurm.cancel(array)
        if cancelled:
            self.note(Cancelled(jobs=cancelled, reason=reason))
        return list(cancelled)

    def cancel_task(self, task: int, reason: Reason) -> str:
        """Cancel one array task of the newest array that has this task; return its job id. Raises InputError."""
        snapshot = self.check()
        jobs = [job for job in snapshot.jobs if task in job.tasks and not job.state.is_final]
        interrupted = snapshot.history.cancelling
        if not jobs and interrupted and interrupted.task == task:
            self.note(Cancelled(jobs=interrupted.jobs, task=task, reason=reason))
            return interrupted.job
        if not jobs:
            raise InputError(
                f"{self.run.name}: no task {task} is queued or running", hint=f"opsctl status {self.run.name}"
            )
        cancelling = Cancelling(jobs=(jobs[-1].array,), task=task, reason=reason)
        self.note(cancelling)
        self.slurm.cancel(cancelling.job)
        self.note(Cancelled(jobs=cancelling.jobs, task=task, reason=reason))
        return cancelling.job

    def exclude(self, nodes: str, *, needed: int, until: datetime | None = None, out: Collection[str] = ()) -> str:
        """Add `nodes` to the excluded nodes of all queued tasks; return every node that is excluded now.

        From `until` on, `readmit` takes the exclusion back. Raises InputError if fewer than `needed` nodes would remain
        in the job's partitions, without nodes `out` of service: Slurm accepts such a list and never starts the job.
        """
        exclusions = self.check_spare(nodes, needed=needed, out=out)
        for array, excluded in exclusions.items():
            self.slurm.exclude(array, str(excluded))
        if exclusions:
            self.note(Excluded(jobs=tuple(exclusions), nodes=str(nodeset(nodes)), until=until))
        return str(union(map(str, exclusions.values())))

    def check_spare(self, nodes: str, *, needed: int, out: Collection[str] = ()) -> dict[str, NodeSet]:
        """Return the nodes that `exclude` would exclude for each queued array, the last array first.

        Raises InputError as `exclude` does.
        """
        new, waiting = nodeset(nodes), self.check().waiting
        all_nodes = union(node.name for node in self.slurm.nodes())
        pools = self._pools(waiting, all_nodes - union(out))
        unknown = new - all_nodes
        if unknown:
            raise InputError(f"no such nodes: {unknown}", hint="opsctl nodes lists them")
        exclusions = {array: nodeset(self.slurm.excluded(array)) | new for array in list_arrays(waiting)}
        for array, excluded in exclusions.items():
            left = len(pools[array] - excluded)
            if left < needed:
                raise InputError(
                    f"with {excluded} excluded {left} nodes are left, and array {array} needs {needed}",
                    hint="exclude fewer nodes, or launch with fewer nodes",
                )
        return exclusions

    def readmit(self, nodes: str) -> list[str]:
        """Take the exclusion of `nodes` back for all queued tasks; return the arrays that changed."""
        readmitted = nodeset(nodes)
        changed = []
        for array in list_arrays(self.check().waiting):
            excluded = nodeset(self.slurm.excluded(array))
            if excluded & readmitted:
                self.slurm.exclude(array, str(excluded - readmitted))
                changed.append(array)
        self.note(Readmitted(jobs=tuple(changed), nodes=str(readmitted)))
        return changed

    def _pools(self, waiting: Sequence[Job], usable: NodeSet) -> dict[str, NodeSet]:
        """Return the usable nodes of each array's partitions."""
        names = set(chain.from_iterable(map(_partitions, waiting)))
        members = {name: union(self.slurm.members(name)) for name in names}
        pools: dict[str, NodeSet] = {}
        for job in waiting:
            partitions = [members[name] for name in _partitions(job)]
            pools[job.array] = usable & union(map(str, partitions)) if any(partitions) else usable
        return pools


def _partitions(job: Job) -> list[str]:
    return [name for name in job.partition.split(",") if name]


def excluded_until(events: Sequence[Event]) -> dict[str, datetime]:
    """Return when the exclusion of each node ends. Nodes that a person excluded have no end and are left out."""
    ends: dict[str, datetime] = {}
    by_person = nodeset("")
    for event in events:
        if isinstance(event, Excluded) and event.until:
            ends |= dict.fromkeys(nodeset(event.nodes), event.until)
        elif isinstance(event, Excluded):
            by_person |= nodeset(event.nodes)
        elif isinstance(event, Readmitted):
            readmitted = nodeset(event.nodes)
            ends = {node: end for node, end in ends.items() if node not in readmitted}
    return {node: end for node, end in ends.items() if node not in by_person}


def list_arrays(jobs: Sequence[Job]) -> list[str]:
    """Return the ids of the jobs' arrays, the last first."""
    return sorted({job.array for job in jobs}, key=int, reverse=True)


def name_arrays(arrays: Sequence[str]) -> str:
    """Return `array 12`, `arrays 13, 12`, or an empty text."""
    return f"array{'s' * (len(arrays) > 1)} {', '.join(arrays)}" if arrays else ""
