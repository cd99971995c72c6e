"""What the trainer, the guard and Slurm say of an end, before any log is read."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.diagnosis.causes import Class
from opsctl.model import JobState
from opsctl.trainer.contract import Reason, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a life ended, in somebody's word."""

    kind: Class
    says: str
    is_final: bool
    """Whether no log can know better: the trainer left by itself. Slurm's word only outweighs what explains nothing."""
    advice: str = ""


_REASONS = {
    Reason.FINISHED: (Class.NONE, "the last step is done"),
    Reason.KILL: (Class.SWITCH, "the kill switch stopped it"),
    Reason.PAUSE: (Class.SWITCH, "the pause switch stopped it"),
    Reason.STOP_REQUEST: (Class.SWITCH, "it was asked to stop"),
    Reason.DEADLINE: (Class.TIME_LIMIT, "it saved and left before its time was up"),
    Reason.MEMORY: (Class.MEMORY, "the trainer left because memory ran out"),
    Reason.NAN: (Class.DATA, "the trainer left because the loss was not a number"),
}
_STATES = {
    JobState.TIMEOUT: (Class.TIME_LIMIT, "Slurm ended it at its time limit"),
    JobState.DEADLINE: (Class.TIME_LIMIT, "Slurm ended it at its deadline"),
    JobState.PREEMPTED: (Class.PREEMPTED, "Slurm took the nodes for another job"),
    JobState.NODE_FAIL: (Class.NODE, "Slurm lost a node"),
    JobState.BOOT_FAIL: (Class.NODE, "a node did not boot"),
    JobState.CANCELLED: (Class.SWITCH, "somebody cancelled the job"),
    JobState.REVOKED: (Class.SWITCH, "another cluster took the job"),
    JobState.OUT_OF_MEMORY: (Class.MEMORY, "a node ran out of memory"),
}
_ADVICE = {
    Class.NODE: "See `sinfo -R` for which node, and exclude it until it has been seen well.",
    Class.MEMORY: "Ask for more memory, or use less: see the step of the trainer that was the last.",
    Class.DATA: "Look at the curve before; go back a checkpoint, skip the batches.",
    Class.TIME_LIMIT: "Nothing, if the next task goes on from a recent checkpoint.",
    Class.PREEMPTED: "Nothing: the next task goes on.",
}


def by_trainer(stop: StopReason | None, asked: str = "") -> End | None:
    """The trainer's own word. `asked` is why the guard asked it to stop, if it did."""
    if stop is None:
        return None
    kind, says = _REASONS[stop.reason]
    detail = stop.detail or (asked if stop.reason is Reason.STOP_REQUEST else "")
    says = f"{says}, at step {stop.step}" + (f": {detail}" if detail else "")
    return End(kind=kind, says=says, is_final=True, advice=_ADVICE.get(kind, ""))


def by_slurm(state: JobState) -> End | None:
    """Slurm's word, where it is more than that the job failed."""
    if state not in _STATES:
        return None
    kind, says = _STATES[state]
    return End(kind=kind, says=says, is_final=False, advice=_ADVICE.get(kind, ""))
