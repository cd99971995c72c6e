"""Carrying out a launch. After one that was cut off, or whose end is unknown, the next looks before it submits, and so
neither doubles nor loses the train."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.errors import InputError, OpsctlError, RunDirError, SchedulerError, Unreachable
from opsctl.host.system import user_name
from opsctl.launch.revisions import Files, read_files, swap
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.model import LaunchPlan
from opsctl.ports import Clock
from opsctl.state.journal import EventKind
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, read


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedArray:
    """What a launch came to."""

    array: str
    tasks: int
    already: bool
    """It was submitted by an earlier launch that did not learn of it."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that is ready to be carried out."""

    plan: LaunchPlan
    files: Files
    chain: TrainArrays
    clock: Clock
    group: str
    """The Unix group that may arm switches."""
    check_trusted: Callable[[], None]
    """Raises RunDirError if others could have written what would be run."""
    kept_from: tuple[tuple[str, datetime], ...] = ()
    """Nodes that the plan leaves out only until then."""

    @property
    def run(self) -> RunDir:
        return self.chain.run

    def already(self) -> SubmittedArray | None:
        """What an earlier launch came to that did not learn of it, if there is one."""
        if not self.run.exists:
            return None
        snapshot = self.chain.check()
        return self._already(snapshot) if snapshot.adopted else None

    def carry_out(self) -> SubmittedArray:
        """Write the run directory and submit. Raises InputError where the train is queued or stopped already,
        Unreachable where it is unknown whether it was submitted."""
        check_owner(self.run)
        self.run.create(self.group)
        with lease(self.run.path, self.clock):
            snapshot = self.chain.check()
            self.chain.drop_doubles(snapshot)
            if snapshot.adopted:
                return self._already(snapshot)
            check_not_stopped(self.run)
            check_not_queued(self.run, snapshot, self.plan.spec.after)
            self._check_append(snapshot)
            lost = self._note_lost(snapshot)
            self._write()
            self.check_trusted()
            array = self._submit(snapshot)
        return SubmittedArray(array=array, tasks=self.plan.spec.tasks, already=False, notes=tuple(lost))

    def _already(self, snapshot: TrainSnapshot) -> SubmittedArray:
        array = snapshot.adopted[0].array
        tasks = snapshot.history.arrays[array].tasks
        return SubmittedArray(array=array, tasks=tasks, already=True, notes=())

    def _check_append(self, snapshot: TrainSnapshot) -> None:
        """Tasks that are queued read the same files: changing those is an edit, and said as such."""
        now = read_files(self.run)
        if snapshot.is_queued and now and (now.trainer, now.body) != (self.files.trainer, self.files.body):
            raise InputError(
                f"{self.run.name}: what the queued tasks run would change with this launch",
                hint=f"opsctl edit {self.run.name} TRAIN.toml changes it for them too; then launch again",
            )

    def _note_lost(self, snapshot: TrainSnapshot) -> list[str]:
        lost = sorted({job.array for job in snapshot.strangers}, key=int)
        for array in lost:
            self.chain.note(EventKind.ARRAY_LOST, array=array)
        return [f"array {array} of this train was lost: Slurm has given its id to another job" for array in lost]

    def _write(self) -> None:
        if read_files(self.run) != self.files:
            # Before it is done: afterwards nothing is new any more.
            self.chain.note(EventKind.CREATED, config=str(self.run.config))
        swap(self.run, self.files)
        self.run.write(self.run.wrapper, self.plan.wrapper)

    def _submit(self, snapshot: TrainSnapshot) -> str:
        """Submit under the nonce of an earlier try, if there is one: should that one arrive late, the two are known
        for the same."""
        nonce = next(iter(snapshot.history.pending), self.plan.nonce)
        plan = replace(self.plan, nonce=nonce)
        for node, until in self.kept_from:
            self.chain.note(EventKind.EXCLUDED, jobs=[], nodes=node, until=until.isoformat())
        self.chain.note(EventKind.SUBMITTING, nonce=nonce, tasks=plan.spec.tasks, after=plan.spec.after)
        # A percent sign in the path would be one of Slurm's patterns.
        output = str(self.run.main_log).replace("%", "%%")
        try:
            array = self.chain.scheduler.submit(plan, script=str(self.run.wrapper), output=output)
        except Unreachable:
            raise
        except OpsctlError as error:
            self.chain.note(EventKind.SUBMIT_REFUSED, nonce=nonce, why=error.message)
            raise
        self.chain.note(EventKind.SUBMITTED, nonce=nonce, array=array)
        return array


def new_nonce() -> str:
    return uuid.uuid4().hex


def check_owner(run: RunDir) -> None:
    """Raises RunDirError if the directory is there and someone else's."""
    if run.path.exists() and not run.is_ours:
        raise RunDirError(
            f"{run.path}: belongs to {user_name(run.path.stat().st_uid)}; only they can launch it",
            hint="choose another name, or ask them",
        )


def check_not_stopped(run: RunDir) -> None:
    """A switch from last time would stop the train as it starts. Raises InputError."""
    for switch, flag in ((Switch.KILL, ""), (Switch.PAUSE, " --pause")):
        if armed := read(run, switch):
            why = f": {armed.why}" if armed.why else ""
            raise InputError(
                f"{run.name}: the {switch} switch is armed since {armed.since:%Y-%m-%d %H:%M} UTC by {armed.by}{why}",
                hint=f"opsctl kill-switch disarm {run.name}{flag}",
            )


def check_not_queued(run: RunDir, snapshot: TrainSnapshot, after: str) -> None:
    """One train runs once at a time. Raises InputError, or SchedulerError for an array that is not to be understood."""
    if odd := [job.array for job in snapshot.strangers if job.name == run.name]:
        raise SchedulerError(
            f"array {odd[0]} has this train's name and id, but not the comment that opsctl gave it",
            hint="somebody changed it; cancel that array before you launch, or the train may run twice",
        )
    if not snapshot.is_queued:
        return
    last = max((job.array for job in (*snapshot.waiting, *snapshot.active)), key=int)
    if after != last:  # nor after one task of it: the next one would run at the same time
        raise InputError(
            f"{run.name}: is queued already, as array {last}",
            hint=f"to add tasks behind it: launch with --after {last}; to change what it runs: opsctl edit; to start"
            f" over: opsctl cancel {run.name}",
        )
