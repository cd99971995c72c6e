"""The arrays of one train as Slurm has them now, and holding, releasing and cancelling them all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ClusterShell.NodeSet import NodeSet

from opsctl.errors import InputError
from opsctl.model import Job
from opsctl.nodesets import nodeset, union
from opsctl.ports import Scheduler
from opsctl.state.journal import Event, EventKind, Journal, TrainHistory, replay
from opsctl.state.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSnapshot:
    """One look at a train: what its journal says, and which rows of the queue are really its own."""

    history: TrainHistory
    jobs: tuple[Job, ...]
    """Rows of the queue that carry one of the train's nonces, the oldest array first."""
    adopted: tuple[Job, ...]
    """Those among them of which the journal does not know that they were submitted."""
    doubles: tuple[Job, ...]
    """Those among them of a submission that arrived twice, as one can that was given up for lost: the later array."""
    strangers: tuple[Job, ...]
    """Rows that have the id of an array of ours and are not ours: a controller that was killed uses ids again."""

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_waiting]

    @property
    def active(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_active]

    @property
    def is_queued(self) -> bool:
        return bool(self.waiting or self.active)


def take_snapshot(run: RunDir, journal: Journal, jobs: Sequence[Job]) -> TrainSnapshot:
    """Tell the train's own rows from others by the nonce in their comment, never by id or name alone."""
    history = replay(journal.events())
    known = {f"opsctl:{run.name}:{array.nonce}" for array in history.arrays.values()}
    begun = {f"opsctl:{run.name}:{nonce}" for nonce in history.pending}
    ours = [job for job in jobs if job.comment in known | begun]
    strangers = [job for job in jobs if job.array in history.arrays and job.comment not in known | begun]
    kept = _kept(history, ours)
    return TrainSnapshot(
        history=history,
        jobs=tuple(sorted(ours, key=lambda job: (int(job.array), job.tasks))),
        adopted=tuple(job for job in ours if job.comment in begun and job.array == kept[job.comment]),
        doubles=tuple(job for job in ours if job.array != kept[job.comment] and not job.state.is_final),
        strangers=tuple(strangers),
    )


def _kept(history: TrainHistory, ours: Sequence[Job]) -> dict[str, str]:
    """For each comment the array that is the train's: the one that has started, else the one that is known, else the
    first."""
    known = set(history.arrays)
    order = sorted(ours, key=lambda job: (job.state.is_active, job.array in known, -int(job.array)))
    return {job.comment: job.array for job in order}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainArrays:
    """The queued and running arrays of one train. Its verbs are idempotent and act on the last array first, for the
    next one starts as soon as the one before it ends."""

    run: RunDir
    journal: Journal
    scheduler: Scheduler

    def check(self, jobs: Sequence[Job] | None = None) -> TrainSnapshot:
        """Ask Slurm once (unless its whole queue is given), and note in the journal what it knew and the journal did
        not."""
        jobs = self.scheduler.jobs() if jobs is None else jobs
        snapshot = take_snapshot(self.run, self.journal, jobs)
        if not (snapshot.adopted and self.run.is_ours):
            return snapshot
        for array, job in {job.array: job for job in snapshot.adopted}.items():
            self.note(EventKind.SUBMITTED, nonce=job.comment.rpartition(":")[2], array=array)
        return replace(take_snapshot(self.run, self.journal, jobs), adopted=snapshot.adopted)

    def note(self, kind: EventKind, **data: object) -> None:
        """Journal what was done. Only the owner can: what a team-mate did shows in their switch or request."""
        if self.run.is_ours:
            self.journal.append(kind, **data)

    def drop_doubles(self, snapshot: TrainSnapshot) -> list[str]:
        """Cancel what is queued of a submission that arrived twice; the arrays. One that runs already is left alone."""
        arrays = _arrays([job for job in snapshot.doubles if job.state.is_waiting])
        for array in arrays:
            self.scheduler.cancel(array, queued_only=True)
            self.note(EventKind.CANCELLED, job=array, why="the same submission arrived twice")
        return arrays

    def hold(self, why: str) -> list[str]:
        """Hold what is queued; the arrays that have anything queued, the last first."""
        arrays = _arrays(self.check().waiting)
        for array in arrays:
            self.scheduler.hold(array)
        if arrays:
            self.note(EventKind.HELD, jobs=arrays, why=why)
        return arrays

    def release(self) -> list[str]:
        """Let what is queued start again; the arrays, the last first."""
        snapshot = self.check()
        arrays = _arrays(snapshot.waiting)
        for array in arrays:
            self.scheduler.release(array)
        if arrays or snapshot.history.held:
            self.note(EventKind.RELEASED, jobs=arrays)
        return arrays

    def cancel(self, why: str, *, queued_only: bool = False) -> list[str]:
        """Cancel every array, first what is queued and then, unless `queued_only`, what runs; the arrays, also those
        that an earlier call has cancelled that was cut off before it could say so."""
        snapshot = self.check()
        arrays = _arrays(snapshot.waiting)
        running = [] if queued_only else _arrays(snapshot.active)
        now = list(dict.fromkeys([*arrays, *running]))
        ended = list(dict.fromkeys([*_cut_off(snapshot.history), *now]))
        if now:
            self.note(EventKind.CANCELLING, job=",".join(ended), why=why)
        for array in arrays:
            self.scheduler.cancel(array, queued_only=True)
        for array in running:
            self.scheduler.cancel(array)
        if ended:
            self.note(EventKind.CANCELLED, job=",".join(ended), why=why)
        return ended

    def cancel_task(self, task: int, why: str) -> str:
        """Cancel one array task, in the newest array that has it. Raises InputError if none has."""
        snapshot = self.check()
        jobs = [job for job in snapshot.jobs if task in job.tasks and not job.state.is_final]
        begun = str(snapshot.history.cancelling.data["job"]) if snapshot.history.cancelling else ""
        if not jobs and begun.endswith(f"_{task}"):
            self.note(EventKind.CANCELLED, job=begun, why=why)
            return begun
        if not jobs:
            raise InputError(
                f"{self.run.name}: no task {task} is queued or running", hint=f"opsctl status {self.run.name}"
            )
        job = f"{jobs[-1].array}_{task}"
        self.note(EventKind.CANCELLING, job=job, why=why)
        self.scheduler.cancel(job)
        self.note(EventKind.CANCELLED, job=job, why=why)
        return job

    def exclude(self, nodes: str, *, needed: int, until: datetime | None = None, out: Collection[str] = ()) -> str:
        """Keep `nodes` from what is queued, besides those that are excluded already; all that are excluded now.

        With `until`, `readmit` takes it back from then on. Raises InputError if fewer than `needed` nodes of the job's
        partition would remain besides those that are `out` of service: Slurm would take it and then never start the
        job.
        """
        wanted = self.check_spare(nodes, needed=needed, out=out)
        for array, excluded in wanted.items():
            self.scheduler.exclude(array, str(excluded))
        if wanted:
            end = {"until": until.isoformat()} if until else {}
            self.note(EventKind.EXCLUDED, jobs=list(wanted), nodes=str(nodeset(nodes)), **end)
        return str(union(map(str, wanted.values())))

    def check_spare(self, nodes: str, *, needed: int, out: Collection[str] = ()) -> dict[str, NodeSet]:
        """What each array with something queued would be kept from, the last array first. Raises InputError as
        `exclude` does."""
        add, waiting = nodeset(nodes), self.check().waiting
        every = union(node.name for node in self.scheduler.nodes())
        pools = self._pools(waiting, every - union(out))
        unknown = add - every
        if unknown:
            raise InputError(f"no such nodes: {unknown}", hint="opsctl nodes, or sinfo, lists them")
        wanted = {array: nodeset(self.scheduler.excluded(array)) | add for array in _arrays(waiting)}
        for array, excluded in wanted.items():
            left = len(pools[array] - excluded)
            if left < needed:
                raise InputError(
                    f"with {excluded} excluded {left} nodes are left, and array {array} needs {needed}",
                    hint="exclude fewer, or launch with fewer nodes",
                )
        return wanted

    def readmit(self, nodes: str) -> list[str]:
        """Let what is queued have these nodes again; the arrays that were kept from one of them."""
        back = nodeset(nodes)
        changed = []
        for array in _arrays(self.check().waiting):
            now = nodeset(self.scheduler.excluded(array))
            if now & back:
                self.scheduler.exclude(array, str(now - back))
                changed.append(array)
        self.note(EventKind.READMITTED, jobs=changed, nodes=str(back))
        return changed

    def _pools(self, waiting: Sequence[Job], usable: NodeSet) -> dict[str, NodeSet]:
        """For each array the usable nodes of its partitions."""
        names = {name for job in waiting for name in job.partition.split(",") if name}
        members = {name: union(self.scheduler.members(name)) for name in names}
        pools: dict[str, NodeSet] = {}
        for job in waiting:
            own = [members[name] for name in job.partition.split(",") if name]
            pools[job.array] = usable & union(map(str, own)) if any(own) else usable
        return pools


def excluded_until(events: Sequence[Event]) -> dict[str, datetime]:
    """Until when each node is excluded from what is queued; without those that a person has excluded."""
    ends: dict[str, datetime] = {}
    node_set = nodeset("")
    for event in events:
        if event.kind is EventKind.EXCLUDED and "until" in event.data:
            ends |= dict.fromkeys(nodeset(event.data["nodes"]), datetime.fromisoformat(event.data["until"]))
        elif event.kind is EventKind.EXCLUDED:
            node_set |= nodeset(event.data["nodes"])
        elif event.kind is EventKind.READMITTED:
            back = nodeset(event.data["nodes"])
            ends = {node: end for node, end in ends.items() if node not in back}
    return {node: end for node, end in ends.items() if node not in node_set}


def _cut_off(history: TrainHistory) -> list[str]:
    """The arrays of a cancellation that was begun and of which it is not known how far it came."""
    begun = str(history.cancelling.data["job"]) if history.cancelling else ""
    return [] if "_" in begun or not begun else begun.split(",")


def _arrays(jobs: Sequence[Job]) -> list[str]:
    """The ids of their arrays, the last first."""
    return sorted({job.array for job in jobs}, key=int, reverse=True)
