"""How far a rollback is, and what is left to do after an interruption. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.actions.start_rollback import RollbackState
from opsctl.dash.show_times import format_ago
from opsctl.dash.train_reasons import NextStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollback:
    """What the page says of a rollback."""

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
    what = f"{'undo of the rollback' if state.is_undo else 'rollback'} to step {state.step:,}"
    if state.is_running:
        return ShownRollback(text=f"A {what} is running{started}.", lines=state.output, is_running=True)
    if state.is_interrupted:
        command = f"opsctl rollback {train}{' --undo' if state.is_undo else ''}"
        return ShownRollback(
            text=f"A {what} was interrupted. The queued tasks stay held until the rollback is finished.",
            lines=state.output,
            tone="amber",
            steps=(NextStep(text="Finish the rollback.", command=command),),
            is_undo=state.is_undo,
        )
    if state.has_failed:
        return ShownRollback(text=f"The {what}{started}, has failed.", lines=state.output, tone="amber")
    lines = state.output or ("The process has ended without a result.",)
    return ShownRollback(text=f"The {what}{started}, has ended.", lines=lines)
