"""Finalize an ended attempt: read its dossier, decide the outcome, find the cause, choose the action, carry it out.

Anybody who owns the train may finalize, again and at the same time: a lease lets one act. Whoever is killed leaves the
attempt without end.json, and the next one goes on from what the journal holds: a journalled cause is not weighed anew,
and a journalled action is not carried out again.
"""

import logging
from collections.abc import Sequence
from dataclasses import fields, replace

from opsctl.base.model import Job
from opsctl.diagnosis import hang_cause
from opsctl.diagnosis.blame import may_exclude
from opsctl.guard.action import ACTIONS, choose_action, hold_if_stuck, list_recent_ends
from opsctl.guard.cause import FoundCause, find_cause, find_diagnosis, recall_diagnosis, to_event
from opsctl.guard.dossier import Dossier, read_dossier
from opsctl.guard.end_record import Action, AttemptProgress, FinishedAttempt, Outcome, date_last_output, read_end
from opsctl.guard.node_care import NodeCare, explain_diagnosis
from opsctl.guard.outcome import decide_outcome
from opsctl.guard.unfinalized import find_final_row, find_headless, find_vanished, list_ended, load_past_jobs
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.settings.health import PolicySettings
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import AttemptFinalized, Event, ExclusionDecided
from opsctl.state.journal import Journal, replay
from opsctl.state.lease import lease
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.records import to_text
from opsctl.state.run_dir import Attempt

log = logging.getLogger(__name__)


def finalize_ended(
    arrays: TrainArrays,
    rules: GuardSettings,
    snapshot: TrainSnapshot,
    *,
    own: str = "",
    past: Sequence[Job] | None = None,
    care: NodeCare | None = None,
) -> list[FinishedAttempt]:
    """Finalize every ended attempt that is not finalized, in the order of their starts; never `own`.

    `past` holds accounting's rows of jobs that have left the queue; accounting is asked if `past` is None. A running
    task whose guard is gone with its node is cancelled; its attempt has then ended at the next call.
    """
    for job in find_headless(arrays.run, snapshot):
        log.warning("cancelling %s: Slurm has taken the node of its guard out of the job", job.full_id)
        arrays.slurm.cancel(job.full_id)
    ended = [attempt for attempt in list_ended(arrays.run, snapshot) if attempt.name != own]
    if past is None:
        past = load_past_jobs(arrays.slurm, find_vanished(arrays.run, snapshot) if ended else [])
    return [
        finalize(arrays, rules, attempt, job=find_final_row(attempt, [*snapshot.jobs, *past]), care=care)
        for attempt in ended
    ]


def finalize(
    arrays: TrainArrays, rules: GuardSettings, attempt: Attempt, *, job: Job | None = None, care: NodeCare | None = None
) -> FinishedAttempt:
    """Finalize an ended attempt; return the earlier result if the attempt is finalized already.

    `job` is Slurm's final row of the attempt, if known. Without `care`, nothing is done about nodes. Raises OpsctlError
    if an action or its record fails; the attempt then stays unfinalized.
    """
    if done := read_end(attempt):
        return done
    dossier = read_dossier(arrays.journal, attempt, job, rules.on_exit_0)
    outcome, why = decide_outcome(dossier.evidence)
    log.debug("%s: %s by %s", attempt.name, outcome.value, dossier.evidence)
    cause = find_cause(arrays, rules, dossier, outcome, care)  # before the lease is taken: this may take long
    with lease(arrays.run.path, arrays.journal.clock):
        if done := read_end(attempt):
            return done
        # The order is cause, effects, event, end.json. A crash between two of them leaves what the next finalizer
        # repeats harmlessly: the cause is read from the journal, an effect is idempotent, and only end.json ends it.
        events = _record_cause(arrays.journal, attempt, cause)
        ended = _add_cause(_describe(dossier, outcome, why), events)
        ended = _act_once(arrays, rules, ended, cause, care)
        if care and dossier.start:
            care.note_step_times(arrays.run.name, attempt, dossier.start.nodes, ended.ended)
        ended = replace(ended, last_output=date_last_output(arrays.run, attempt))
        arrays.run.make(attempt.path)
        arrays.run.write(attempt.end, to_text(ended))
        arrays.journal.leave_out_old()
    log.info("finalized %s: %s, %s: %s", ended.attempt, ended.outcome.value, ended.action.value, ended.why)
    for line in ended.done:
        log.info("%s: %s", ended.attempt, line)
    return ended


def _record_cause(journal: Journal, attempt: Attempt, cause: FoundCause) -> Sequence[Event]:
    """Journal the diagnosis, unless another process has; return all events."""
    if cause.diagnosis and find_diagnosis(journal.events(), attempt.name) is None:
        journal.append(to_event(cause.diagnosis, cause.suspects, cause.accused, cause.acquitted))
    return journal.events()


def _describe(dossier: Dossier, outcome: Outcome, why: str) -> FinishedAttempt:
    """Return the record of an end without its cause."""
    return FinishedAttempt(
        attempt=dossier.attempt.name,
        outcome=outcome,
        action=ACTIONS[outcome],
        why=why,
        exit_why=why,
        started=dossier.started,
        ended=dossier.ended,
        code=dossier.evidence.code,
        limit_minutes=dossier.limit_minutes,
        **{field.name: getattr(dossier.progress, field.name) for field in fields(AttemptProgress)},
    )


def _add_cause(ended: FinishedAttempt, events: Sequence[Event]) -> FinishedAttempt:
    """Return the record with the journalled cause."""
    event = find_diagnosis(events, ended.attempt)
    if event is None:
        return ended
    diagnosis = recall_diagnosis(event)
    return replace(
        ended,
        kind=diagnosis.kind,
        cause=diagnosis.cause,
        signature=diagnosis.signature,
        suspects=event.suspects if may_exclude(diagnosis.kind) else (),
        done=event.acquitted,
        why=f"{ended.why}; {explain_diagnosis(diagnosis)}" if diagnosis.cause != "nothing" else ended.why,
    )


def _act_once(
    arrays: TrainArrays, rules: GuardSettings, ended: FinishedAttempt, cause: FoundCause, care: NodeCare | None
) -> FinishedAttempt:
    """Choose the action and carry it out, unless the journal shows that this was done; return the record with both."""
    events = arrays.journal.events()
    event = replay(events).finalized.get(ended.attempt)
    if event is not None:
        done = _note_hang(arrays, ended, cause, care) or _recall_exclusion(events, ended.attempt)
        return replace(
            ended,
            outcome=Outcome(event.outcome),
            action=Action(event.action),
            why=event.why,
            reason=event.reason,
            done=(*ended.done, *done),
        )
    ended = _carry_out(arrays, rules, choose_action(arrays.run, ended, events, rules), cause, care)
    arrays.journal.append(
        AttemptFinalized(
            attempt=ended.attempt,
            outcome=ended.outcome,
            action=ended.action,
            why=ended.why,
            exit_why=ended.exit_why,
            reason=ended.reason,
        )
    )
    return ended


def _carry_out(
    arrays: TrainArrays, rules: GuardSettings, ended: FinishedAttempt, cause: FoundCause, care: NodeCare | None
) -> FinishedAttempt:
    """Carry out the action; return `ended` with what was done."""
    ended = replace(ended, done=(*ended.done, *_note_hang(arrays, ended, cause, care)))
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
    if ended.action is Action.CANCEL_QUEUED and (ids := arrays.cancel(reason, queued_only=True)):
        log.info("cancelled the queued tasks of %s: %s", ", ".join(ids), reason)
    elif ended.action in {Action.HOLD_QUEUED, Action.PROPOSE_CANCEL} and (ids := arrays.hold(ended.reason or reason)):
        log.info("held the queued tasks of %s: %s", ", ".join(ids), ended.reason or reason)
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


def _note_hang(
    arrays: TrainArrays, ended: FinishedAttempt, cause: FoundCause, care: NodeCare | None
) -> tuple[str, ...]:
    if cause.diagnosis and cause.diagnosis.cause == hang_cause.CAUSE and cause.diagnosis.node and care:
        return care.note_hang(arrays.run.name, ended.attempt, cause.diagnosis.node, ended.ended)
    return ()


def _recall_exclusion(events: Sequence[Event], attempt: str) -> tuple[str, ...]:
    """Return what an interrupted finalization of the attempt did about nodes."""
    done = [event.done for event in events if isinstance(event, ExclusionDecided) and event.attempt == attempt]
    return tuple(done[-1]) if done else ()
