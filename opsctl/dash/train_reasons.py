"""Why a train is in its state, the line that proves it, and what to do about it; how far a rollback is. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from opsctl.dash.show_times import format_ago
from opsctl.dash.train_headline import PLANNED, is_held_by_opsctl, is_urgent, name_attempt
from opsctl.diagnosis.excerpt import find_matched_line, find_place
from opsctl.launch.rollback_state import RollbackPhase, RollbackState
from opsctl.monitor.status import LastAttempt, TrainStatus
from opsctl.state.events import Diagnosed
from opsctl.state.journal import TrainHistory
from opsctl.state.reasons import CHANGES, NeededChange, Reason
from opsctl.watchdogs.held_cause import advise_still, describe_cause, list_same_cause


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do: a sentence, its command, and the action of the page that does the same. Both may be empty."""

    text: str
    command: str = ""
    verb: str = ""
    number: int | str = ""
    """The number that the action asks for, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReason:
    """What the page says below the headline. Empty texts are not shown."""

    why: str = ""
    evidence: str = ""
    steps: tuple[NextStep, ...] = ()
    """What to do, in this order."""


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


def explain(status: TrainStatus, history: TrainHistory, excluded: Collection[str], config: str = "") -> StateReason:
    """Return the reason of a held or ended train; empty for any other. `config` is the train.toml to launch again."""
    last = status.last_attempt
    if status.state == "held" and not is_held_by_opsctl(status):
        step = NextStep(text="Release the train.", command=f"opsctl release {status.train}", verb="release")
        return StateReason(steps=(step,))
    if status.state not in {"held", "ended"} or last is None:
        return _explain_alert(status)
    command = f"opsctl launch {config or f'{status.train}.toml'}"
    launch = NextStep(text="Queue tasks again.", command=command, verb="queue")
    if status.state == "ended" and last.outcome in PLANNED:
        return StateReason(why=_describe_end(status, history, last), steps=(launch,))
    diagnosis = history.diagnosed.get(last.attempt)
    advice = advise_still(diagnosis, excluded) if diagnosis else last.advice
    return StateReason(
        why=_describe_end(status, history, last),
        evidence=_find_proof(diagnosis) if diagnosis else "",
        steps=tuple(_list_steps(status, history, advice, launch)),
    )


def _find_proof(diagnosis: Diagnosed) -> str:
    """Return the line that proves the cause, behind the place where a traceback ends."""
    line, place = find_matched_line(diagnosis.cause, diagnosis.evidence), find_place(diagnosis.evidence)
    return ": ".join(filter(None, (place if place not in line else "", line)))


def _explain_alert(status: TrainStatus) -> StateReason:
    """Return the first line of evidence and the remedy of the alert that is the headline; empty without one."""
    if any(job.full_disk for job in status.running or ()):
        text, command = "Make room. The attempt starts once there is space.", f"opsctl checkpoint list {status.train}"
        return StateReason(steps=(NextStep(text=text, command=command),))
    alert = next(filter(is_urgent, status.alerts), None)
    if alert is None or status.state == "finished":
        return StateReason()
    steps = [NextStep(text=alert.remedy)] if alert.remedy else []
    if alert.rollback_step is not None:
        step, command = alert.rollback_step, f"opsctl rollback {status.train} --to {alert.rollback_step}"
        steps.append(NextStep(text=f"Roll back to step {step:,}.", command=command, verb="rollback", number=step))
    return StateReason(evidence=alert.evidence, steps=tuple(steps))


def _list_steps(status: TrainStatus, history: TrainHistory, advice: str, launch: NextStep) -> Iterator[NextStep]:
    """Yield the fix, and what lets the train go on after the fix: the release, or a launch if nothing is queued."""
    reason, is_held = _find_reason(history), status.state == "held"
    default = CHANGES[NeededChange.CAUSE]
    change, command = CHANGES.get(reason.change, default) if reason else default
    first = f"Before the {'release' if is_held else 'next launch'}, {change}."
    operands = f" {status.train} TRAIN.toml" if command == "opsctl edit" else f" {status.train}" * bool(command)
    yield NextStep(text=" ".join(filter(None, (first, advice))), command=command + operands)
    if is_held:
        yield NextStep(text="Then release the train.", command=f"opsctl release {status.train}", verb="release")
    else:
        yield launch


def _describe_end(status: TrainStatus, history: TrainHistory, last: LastAttempt) -> str:
    """Return one sentence with one count: `None of the 6 attempts got beyond step 130; checkpoint: step 100.`"""
    count, reason = len(list_same_cause(history, last.attempt)), _find_reason(history)
    found = reason.step if reason else None
    parts = []
    if not describe_cause(history):
        final = history.finalized.get(last.attempt)
        why = final.exit_why if final and last.outcome not in PLANNED else ""
        parts.append(f"{name_attempt(last.attempt, history)} {last.outcome}: {why or last.why}")
    if found is not None:
        who = f"None of the {count} attempts" if count > 1 else "No attempt"
        parts.append(f"{who} got beyond step {found:,}")
    saved = status.progress.checkpoint_step if status.progress else None
    is_stuck = found is None and reason is not None and reason.is_stuck
    if is_stuck and saved is not None:
        parts.append(f"no progress since the checkpoint of step {saved:,}")
    elif parts or count:
        note = status.progress.found_instead if status.progress else ""
        lack = f"checkpoint: {note}" if note else "no checkpoint yet"
        parts.append(f"newest checkpoint: step {saved:,}" if saved is not None else lack)
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _find_reason(history: TrainHistory) -> Reason | None:
    """Return why the last finalized attempt holds the train."""
    finalized = list(history.finalized.values())
    return finalized[-1].reason if finalized else None


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
            steps=(NextStep(text=f"Finish the {short}.", command=command, verb="rollback"),),
            is_undo=state.is_undo,
        )
    return _describe_rollback_end(state, f"The rollback to step {state.step:,}{started},")


def _describe_rollback_end(state: RollbackState, rollback: str) -> ShownRollback:
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
