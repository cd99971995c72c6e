"""How far a rollback is, and what is left to do after an interruption. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.dash.show_times import format_ago
from opsctl.dash.train_reasons import NextStep
from opsctl.launch.rollback_state import RollbackPhase, RollbackState


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollback:
    text: str
    lines: tuple[str, ...]
    """The newest lines that the rollback has printed."""
    tone: str = "quiet"
    steps: tuple[NextStep, ...] = ()
    """How an interrupted rollback is finished."""
    is_running: bool = False
    is_undo: bool = False


def describe_rollback(state: RollbackState, train: str, now: datetime) -> ShownRollback:
    """Return what the page says of a rollback that runs, was interrupted, or ended within a day."""
    started = f", started {format_ago(now, state.started.at)} by {state.started.by}" if state.started else ""
    short = "undo" if state.is_undo else "rollback"
    what = f"{'An undo of the' if state.is_undo else 'A'} rollback to step {state.step:,}"
    if state.is_running:
        return ShownRollback(text=f"{what} is running{started}.", lines=state.output, is_running=True)
    if state.is_interrupted:
        command = f"opsctl rollback {train}{' --undo' if state.is_undo else ''}"
        return ShownRollback(
            text=f"{what} was interrupted. The queued tasks stay held until the {short} is finished.",
            lines=state.output,
            tone="amber",
            steps=(NextStep(text=f"Finish the {short}.", command=command),),
            is_undo=state.is_undo,
        )
    return _describe_end(state, f"The rollback to step {state.step:,}{started},")


def _describe_end(state: RollbackState, rollback: str) -> ShownRollback:
    """Return what the page says of a rollback that it has started, and that does not run."""
    record = state.record
    if state.is_done:
        is_undone = record is not None and record.phase is RollbackPhase.UNDONE and record.step == state.step
        return ShownRollback(text=f"{rollback} is {'undone' if is_undone else 'done'}.", lines=state.output)
    if state.started and not state.started.is_here:
        text = f"{rollback} has no result yet. This page cannot see the processes of {state.started.host}."
        return ShownRollback(text=text, lines=state.output, tone="unknown")
    lines = state.output or ("The process has ended without a result.",)
    return ShownRollback(text=f"{rollback} has failed.", lines=lines, tone="amber")
