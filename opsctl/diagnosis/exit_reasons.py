"""What the trainer, the guard and Slurm say of an end, before any log is read."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.diagnosis.causes import CauseKind
from opsctl.model import JobState
from opsctl.trainer.contract import StopReason, TrainerStop


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """How an attempt ended, in somebody's word."""

    kind: CauseKind
    says: str
    is_final: bool
    """Whether no log can know better: the trainer left by itself. Slurm's word only outweighs what explains nothing."""
    advice: str = ""


_REASONS = {
    TrainerStop.FINISHED: (CauseKind.NONE, "the last step is done"),
    TrainerStop.KILL: (CauseKind.SWITCH, "the kill switch stopped it"),
    TrainerStop.PAUSE: (CauseKind.SWITCH, "the pause switch stopped it"),
    TrainerStop.STOP_REQUEST: (CauseKind.SWITCH, "it was asked to stop"),
    TrainerStop.DEADLINE: (CauseKind.TIME_LIMIT, "it saved and left before its time was up"),
    TrainerStop.MEMORY: (CauseKind.MEMORY, "the trainer left because memory ran out"),
    TrainerStop.NAN: (CauseKind.DATA, "the trainer left because the loss was not a number"),
}
_STATES = {
    JobState.TIMEOUT: (CauseKind.TIME_LIMIT, "Slurm ended it at its time limit"),
    JobState.DEADLINE: (CauseKind.TIME_LIMIT, "Slurm ended it at its deadline"),
    JobState.PREEMPTED: (CauseKind.PREEMPTED, "Slurm took the nodes for another job"),
    JobState.NODE_FAIL: (CauseKind.NODE, "Slurm lost a node"),
    JobState.BOOT_FAIL: (CauseKind.NODE, "a node did not boot"),
    JobState.CANCELLED: (CauseKind.SWITCH, "somebody cancelled the job"),
    JobState.REVOKED: (CauseKind.SWITCH, "another cluster took the job"),
    JobState.OUT_OF_MEMORY: (CauseKind.MEMORY, "a node ran out of memory"),
}
_ADVICE = {
    CauseKind.NODE: "See `sinfo -R` for which node, and exclude it until it has been seen well.",
    CauseKind.MEMORY: "Ask for more memory, or use less: see the step of the trainer that was the last.",
    CauseKind.DATA: "Look at the curve before; go back a checkpoint, skip the batches.",
    CauseKind.TIME_LIMIT: "Nothing, if the next task goes on from a recent checkpoint.",
    CauseKind.PREEMPTED: "Nothing: the next task goes on.",
}


def explain_by_trainer(stop: StopReason | None, asked: str = "") -> ExitReason | None:
    """The trainer's own word. `asked` is why the guard asked it to stop, if it did."""
    if stop is None:
        return None
    kind, says = _REASONS[stop.reason]
    detail = stop.detail or (asked if stop.reason is TrainerStop.STOP_REQUEST else "")
    says = f"{says}, at step {stop.step}" + (f": {detail}" if detail else "")
    return ExitReason(kind=kind, says=says, is_final=True, advice=_ADVICE.get(kind, ""))


def explain_by_slurm(state: JobState) -> ExitReason | None:
    """Slurm's word, where it is more than that the job failed."""
    if state not in _STATES:
        return None
    kind, says = _STATES[state]
    return ExitReason(kind=kind, says=says, is_final=False, advice=_ADVICE.get(kind, ""))
