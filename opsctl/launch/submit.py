"""The second half of a launch: write the run directory and submit.

A launch can be interrupted, or end without an answer from Slurm. The next launch then searches the queue before it
submits, so a train is neither submitted twice nor lost.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.base.errors import InputError, OpsctlError, RunDirError, SlurmError, Unreachable
from opsctl.base.model import LaunchPlan
from opsctl.base.ports import Clock
from opsctl.host.system import user_name
from opsctl.launch.code_freeze import FrozenCode, store
from opsctl.launch.revisions import Files, read_files, swap
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.state.events import Allowed, ArrayLost, Created, Excluded, SubmitRefused, Submitted, Submitting
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, read


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedArray:
    """The result of a launch."""

    array: str
    tasks: int
    already: bool
    """An earlier launch submitted this array, but was interrupted before it recorded the array."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that is ready to be submitted."""

    plan: LaunchPlan
    files: Files
    arrays: TrainArrays
    clock: Clock
    group: str
    """The Unix group whose members may arm switches."""
    check_trusted: Callable[[], None]
    """Raises RunDirError if another user could have written the scripts."""
    code: FrozenCode | None = None
    """The copy of the trainer's code; None without a freeze."""
    expiring_exclusions: tuple[tuple[str, datetime], ...] = ()
    """Nodes that the plan excludes, and when each exclusion ends."""
    allowed: tuple[Allowed, ...] = ()
    """The errors of preflight that the user allowed."""

    @property
    def run(self) -> RunDir:
        return self.arrays.run

    def find_submitted(self) -> SubmittedArray | None:
        """Return the array that an interrupted launch submitted without recording it, if there is one."""
        if not self.run.exists:
            return None
        snapshot = self.arrays.check()
        return _adopted_array(snapshot) if snapshot.adopted else None

    def carry_out(self) -> SubmittedArray:
        """Write the run directory and submit.

        Raises InputError if the train is queued or rolled back, or a switch is armed, Unreachable if Slurm did not
        answer.
        """
        check_owner(self.run)
        self.run.create(self.group)
        with lease(self.run.path, self.clock):
            snapshot = self.arrays.check()
            self.arrays.drop_duplicates(snapshot)
            if snapshot.adopted:
                return _adopted_array(snapshot)
            check_not_rolling_back(self.run, self.clock)
            check_not_stopped(self.run)
            check_not_queued(self.run, snapshot, self.plan.spec.after)
            self._check_append(snapshot)
            notes = self._note_lost(snapshot)
            self._write()
            self.check_trusted()
            array = self._submit(snapshot)
        return SubmittedArray(array=array, tasks=self.plan.spec.tasks, already=False, notes=tuple(notes))

    def _check_append(self, snapshot: TrainSnapshot) -> None:
        """Refuse a launch that changes files which queued tasks read. Raises InputError."""
        current = read_files(self.run)
        if snapshot.is_queued and current and (current.trainer, current.body) != (self.files.trainer, self.files.body):
            raise InputError(
                f"{self.run.name}: this launch would change the files of the queued tasks",
                hint=f"run opsctl edit {self.run.name} TRAIN.toml to change them, then launch again",
            )

    def _note_lost(self, snapshot: TrainSnapshot) -> list[str]:
        lost = sorted({job.array for job in snapshot.strangers}, key=int)
        for array in lost:
            self.arrays.note(ArrayLost(array=array))
        return [f"array {array} of this train is lost: Slurm reused its id for another job" for array in lost]

    def _write(self) -> None:
        if read_files(self.run) != self.files:
            # Journalled before the swap: afterwards the files no longer differ.
            self.arrays.note(Created(config=str(self.run.config)))
        if self.code:
            store(self.code, self.run)
        swap(self.run, self.files)
        self.run.write(self.run.wrapper, self.plan.wrapper)

    def _submit(self, snapshot: TrainSnapshot) -> str:
        """Submit under the nonce of an earlier, unanswered submission, so that a late arrival is recognised."""
        nonce = next(iter(snapshot.history.pending), self.plan.nonce)
        plan = replace(self.plan, nonce=nonce)
        for allowed in self.allowed:
            self.arrays.note(allowed)
        for node, until in self.expiring_exclusions:
            self.arrays.note(Excluded(jobs=(), nodes=node, until=until))
        # Before sbatch: of a submission without an answer this nonce is all that shows, in the queue's comments, that
        # Slurm got it. Until then nothing may be submitted again.
        self.arrays.note(Submitting(nonce=nonce, tasks=plan.spec.tasks, after=plan.spec.after))
        # Slurm reads a percent sign in the path as a pattern.
        output = str(self.run.main_log).replace("%", "%%")
        try:
            array = self.arrays.slurm.submit(plan, script=str(self.run.wrapper), output=output)
        except Unreachable:
            raise
        except OpsctlError as error:
            self.arrays.note(SubmitRefused(nonce=nonce, why=error.message))
            raise
        self.arrays.note(Submitted(nonce=nonce, array=array))
        return array


def _adopted_array(snapshot: TrainSnapshot) -> SubmittedArray:
    array = snapshot.adopted[0].array
    return SubmittedArray(array=array, tasks=snapshot.history.arrays[array].tasks, already=True, notes=())


def new_nonce() -> str:
    return uuid.uuid4().hex


def check_owner(run: RunDir) -> None:
    """Raises RunDirError if another user owns the run directory, or if the path is a link."""
    if run.path.is_symlink():
        raise RunDirError(f"{run.path}: a symbolic link", hint="choose another name, or remove the link")
    if run.path.exists() and not run.is_ours:
        raise RunDirError(
            f"{run.path}: belongs to {user_name(run.path.stat().st_uid)}; only the owner can launch this train",
            hint="choose another name, or ask the owner",
        )


def check_not_stopped(run: RunDir) -> None:
    """Raises InputError if a switch is armed: the train would stop at its start."""
    for switch, flag in ((Switch.KILL, ""), (Switch.PAUSE, " --pause")):
        if armed := read(run, switch):
            why = f": {armed.why}" if armed.why else ""
            raise InputError(
                f"{run.name}: the {switch} switch is armed since {armed.since:%Y-%m-%d %H:%M} UTC by {armed.by}{why}",
                hint=f"opsctl kill-switch disarm {run.name}{flag}",
            )


def check_not_queued(run: RunDir, snapshot: TrainSnapshot, after: str) -> None:
    """Refuse to queue a train twice.

    Raises InputError if the train is queued, SlurmError for an array whose comment was changed.
    """
    changed = [job.array for job in snapshot.strangers if job.name == run.name]
    if changed:
        raise SlurmError(
            f"array {changed[0]} has this train's name and id, but its comment was changed",
            hint=f"cancel array {changed[0]} before you launch, or the train may run twice",
        )
    if not snapshot.is_queued:
        return
    last = max((job.array for job in (*snapshot.waiting, *snapshot.active)), key=int)
    if after != last:  # after a single task of `last`, two tasks would run at the same time
        raise InputError(
            f"{run.name}: is queued already, as array {last}",
            hint=f"to add tasks: launch with --after {last}; to change the queued tasks: opsctl edit {run.name};"
            f" to start over: opsctl cancel {run.name}",
        )
