"""What is done at the end of an attempt: the action of its record is carried out, and nodes are noted and excluded."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from opsctl.diagnosis import hang_cause
from opsctl.guard.action import hold_if_stuck, list_recent_ends
from opsctl.guard.cause import FoundCause
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.node_care import NodeCare
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.health import PolicySettings
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import Event, ExclusionDecided
from opsctl.state.reasons import Reason, ReasonKind

log = logging.getLogger(__name__)


def carry_out(
    arrays: TrainArrays, rules: GuardSettings, ended: FinishedAttempt, cause: FoundCause, care: NodeCare | None
) -> FinishedAttempt:
    """Carry out the action; return `ended` with what was done."""
    ended = replace(ended, done=(*ended.done, *note_hang(arrays, ended, cause, care)))
    if ended.suspects and cause.diagnosis and care:
        # First of all effects: the next task may start at any moment, and would get the same nodes again.
        removed = care.remove_suspects(arrays, cause.diagnosis, ended.suspects, cause.verdicts)
        arrays.note(replace(removed, attempt=ended.attempt))
        ended = replace(ended, done=(*ended.done, *removed.done))
        if not removed.excluded and ended.action is Action.EXCLUDE_NODES:
            ended = _without_exclusion(arrays, rules, replace(ended, why=f"{ended.why}; {removed.done[0]}"))
    elif ended.action is Action.EXCLUDE_NODES:
        ended = _without_exclusion(arrays, rules, ended)
    ended = _ask_policy(ended, care.policy if care else PolicySettings())
    reason = Reason(
        kind=ReasonKind.NOT_NEEDED if ended.action is Action.CANCEL_QUEUED else ReasonKind.ENDED,
        attempt=ended.attempt,
        outcome=ended.outcome.value,
        text=ended.why,
    )
    if ended.action is Action.CANCEL_QUEUED:
        ids = arrays.cancel(reason, queued_only=True)
        log.info("cancelled the queued tasks of %s: %s", ", ".join(ids) or "no job", reason)
    elif ended.action in {Action.HOLD_QUEUED, Action.PROPOSE_CANCEL}:
        ids = arrays.hold(ended.reason or reason)
        log.info("held the queued tasks of %s: %s", ", ".join(ids) or "no job", ended.reason or reason)
    return ended


def _ask_policy(ended: FinishedAttempt, policy: PolicySettings) -> FinishedAttempt:
    """Return `ended` with a proposal, if the policy leaves its hold or cancellation to a person who has not asked."""
    if ended.outcome in {Outcome.KILLED, Outcome.PAUSED}:
        return ended
    if ended.action is Action.HOLD_QUEUED and policy.hold == "propose":
        return replace(ended, action=Action.PROPOSE_HOLD)
    if ended.action is Action.CANCEL_QUEUED and policy.cancel == "propose":
        return replace(ended, action=Action.PROPOSE_CANCEL)
    return ended


def _without_exclusion(arrays: TrainArrays, rules: GuardSettings, ended: FinishedAttempt) -> FinishedAttempt:
    """Return `ended` with the action if its suspects could not be excluded: then its end counts as any other."""
    ended = replace(ended, action=Action.CONTINUE)
    return hold_if_stuck(ended, list_recent_ends(arrays.run, ended, arrays.journal.events()), rules)


def note_hang(arrays: TrainArrays, ended: FinishedAttempt, cause: FoundCause, care: NodeCare | None) -> tuple[str, ...]:
    if cause.diagnosis and cause.diagnosis.cause == hang_cause.CAUSE and cause.diagnosis.node and care:
        return care.note_hang(arrays.run.name, ended.attempt, cause.diagnosis.node, ended.ended)
    return ()


def recall_exclusion(events: Sequence[Event], attempt: str) -> tuple[str, ...]:
    """Return what an interrupted finalization of the attempt did about nodes."""
    done = [event.done for event in events if isinstance(event, ExclusionDecided) and event.attempt == attempt]
    return tuple(done[-1]) if done else ()
