"""Why an attempt ended, as the trainer, the guard or Slurm reports, without reading logs."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.base.model import JobState
from opsctl.diagnosis.causes import CauseKind, Weight
from opsctl.trainer.contract import StopReason, TrainerStop


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """The reported reason for the end of an attempt."""

    kind: CauseKind
    says: str
    is_final: bool
    """True for the trainer's own report, which overrules the logs. Slurm's report yields to a cause in the logs."""
    advice: str = ""
    yields_to: Weight = Weight.CAUSE
    """The least weight of a log line that outweighs a report that is not final."""


_REASONS = {
    TrainerStop.FINISHED: (CauseKind.NONE, "the last step is done"),
    TrainerStop.KILL: (CauseKind.SWITCH, "the kill switch ended the attempt"),
    TrainerStop.PAUSE: (CauseKind.SWITCH, "the pause switch ended the attempt"),
    TrainerStop.STOP_REQUEST: (CauseKind.SWITCH, "a stop request ended the attempt"),
    TrainerStop.DEADLINE: (CauseKind.TIME_LIMIT, "the trainer saved and exited before the time limit"),
    TrainerStop.MEMORY: (CauseKind.MEMORY, "the trainer exited because memory ran out"),
    TrainerStop.NAN: (CauseKind.NUMERIC, "the trainer exited because the loss was NaN"),
}
_STATES = {
    JobState.TIMEOUT: (CauseKind.TIME_LIMIT, "Slurm ended the job at its time limit"),
    JobState.DEADLINE: (CauseKind.TIME_LIMIT, "Slurm ended the job at its deadline"),
    JobState.PREEMPTED: (CauseKind.PREEMPTED, "Slurm took the nodes for another job"),
    JobState.NODE_FAIL: (CauseKind.NODE, "Slurm lost a node"),
    JobState.BOOT_FAIL: (CauseKind.NODE, "a node did not boot"),
    JobState.CANCELLED: (CauseKind.SWITCH, "a user cancelled the job"),
    JobState.REVOKED: (CauseKind.SWITCH, "another cluster took the job"),
    JobState.OUT_OF_MEMORY: (CauseKind.MEMORY, "a node ran out of memory"),
}
_ADVICE = {
    CauseKind.NODE: "Find the node with `sinfo -R`; exclude the node until a health check passes.",
    CauseKind.MEMORY: "Request more memory or use less; the last step in the log shows when memory ran out.",
    CauseKind.NUMERIC: "Check the loss curve; go back to an earlier checkpoint and skip the batches.",
    CauseKind.TIME_LIMIT: "None if the next task resumes from a recent checkpoint.",
    CauseKind.PREEMPTED: "None: the next task resumes.",
}


def explain_by_trainer(stop: StopReason | None, request_reason: str = "") -> ExitReason | None:
    """Return the trainer's own reason. `request_reason` is why the guard sent a stop request, if it did."""
    if stop is None:
        return None
    kind, says = _REASONS[stop.reason]
    detail = stop.detail
    if not detail and stop.reason is TrainerStop.STOP_REQUEST:
        detail = request_reason
    says = f"{says}, at step {stop.step}" + (f": {detail}" if detail else "")
    return ExitReason(kind=kind, says=says, is_final=True, advice=_ADVICE.get(kind, ""))


def explain_by_slurm(state: JobState) -> ExitReason | None:
    """Return Slurm's reason, None for a state that names none (such as FAILED)."""
    if state not in _STATES:
        return None
    kind, says = _STATES[state]
    return ExitReason(kind=kind, says=says, is_final=False, advice=_ADVICE.get(kind, ""))
