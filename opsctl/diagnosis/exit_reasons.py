"""Why an attempt ended, as the trainer, the guard or Slurm reports, without reading logs."""

from dataclasses import dataclass, replace

from opsctl.base.model import JobState
from opsctl.diagnosis.causes import CauseKind, Weight, read_table
from opsctl.trainer.contract import StopReason, TrainerStop


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """The reported reason for the end of an attempt."""

    kind: CauseKind
    says: str
    signature: str = ""
    """As of a diagnosis."""
    is_final: bool
    """True for the trainer's own report, which overrules the logs. Slurm's report yields to a cause in the logs."""
    advice: str = ""
    yields_to: Weight = Weight.CAUSE
    """The least weight of a log line that outweighs a report that is not final."""


def explain_by_trainer(
    stop: StopReason | None, request_reason: str = "", *, lost_node: bool = False
) -> ExitReason | None:
    """Return the trainer's own reason. `request_reason` is why the guard sent a stop request, if it did.

    If Slurm lost a node, its signal to the other nodes made the trainer stop: this is no reason.
    """
    if stop is None or (lost_node and stop.reason is TrainerStop.STOP_REQUEST):
        return None
    detail = stop.detail or (request_reason if stop.reason is TrainerStop.STOP_REQUEST else "")
    reason = _explain("trainer", stop.reason, f", at step {stop.step}" + (f": {detail}" if detail else ""))
    return replace(reason, signature=f"{stop.reason} {stop.step} {stop.detail}")


def explain_by_slurm(state: JobState) -> ExitReason | None:
    """Return Slurm's reason, None for a state that names none (such as FAILED)."""
    return _explain("slurm", state) if state in read_table("exit_reasons")["slurm"] else None


def explain_by_outcome(outcome: str) -> ExitReason | None:
    """Return what an outcome itself says: with exit code 0, the attempt ended as the trainer or a person planned."""
    return _explain("outcome", outcome) if outcome in read_table("exit_reasons")["outcome"] else None


def _explain(reporter: str, reason: str, more: str = "") -> ExitReason:
    row = read_table("exit_reasons")[reporter][reason]
    return ExitReason(
        kind=CauseKind(row["kind"]),
        says=row["says"] + more,
        is_final=reporter == "trainer",
        advice=read_table("exit_reasons")["advice"].get(row["kind"], "") if reporter != "outcome" else "",
        yields_to=Weight[row.get("yields_to", "cause").upper()],
    )
