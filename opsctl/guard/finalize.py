"""Finalization: the idempotent step that decides the outcome of an ended attempt and acts on it.

Anyone who owns the train may finalize: the guard of the attempt, the guard of the next attempt, a cron tick, a command.
An interrupted finalization is repeated from its start: acting twice changes nothing, and end.json, which records that
nothing is left to do, is written last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from opsctl.base.errors import Unreachable
from opsctl.base.model import Job
from opsctl.diagnosis import hang_cause
from opsctl.diagnosis.blame import may_exclude
from opsctl.guard import attempt_record
from opsctl.guard.before_body import is_row_of, list_unfinalized
from opsctl.guard.cause_inquiry import CauseInquiry, inquire
from opsctl.guard.diagnose import explain_diagnosis, find_diagnosis, recall_diagnosis, to_event
from opsctl.guard.exit_evidence import gather_evidence
from opsctl.guard.hold_rules import decide_action, hold_if_stuck
from opsctl.guard.last_output import date_last_output
from opsctl.guard.node_care import NodeCare
from opsctl.guard.outcome import ACTIONS, Action, FinishedAttempt, Outcome, decide_outcome
from opsctl.guard.progress_signs import read_attempt_progress
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.settings.loader import GuardSettings
from opsctl.slurm.commands import Slurm
from opsctl.state.events import (
    AttemptFinalized,
    AttemptStarted,
    Edited,
    Event,
    ExclusionDecided,
    HoldReleased,
    Submitted,
)
from opsctl.state.files import MAX_RECORD_BYTES, read_json
from opsctl.state.journal import TrainHistory, replay
from opsctl.state.lease import lease
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.records import decode, to_text
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import read_time

log = logging.getLogger(__name__)
_RESTARTS = (Submitted, HoldReleased, Edited)
"""Events by which a person restarts the train. Crashes before such an event count no more."""


def finalize(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, *, job: Job | None = None, care: NodeCare | None = None
) -> FinishedAttempt:
    """Finalize an ended attempt; return the earlier result if the attempt is finalized already.

    `job` is Slurm's final row of the attempt, if known. Without `care`, nothing is done about nodes. Raises OpsctlError
    if an action or its record fails; the attempt then stays unfinalized.
    """
    journal = chain.journal
    if done := read_end(attempt):
        return done
    # The diagnosis may take long, so it runs before the lease is taken.
    decide = partial(_decide_without_cause, chain, rules, attempt, job)
    cause_inquiry = inquire(chain, rules, attempt, job=job, care=care, decide=decide)
    with lease(chain.run.path, journal.clock):
        if done := read_end(attempt):
            return done
        if cause_inquiry.diagnosis and find_diagnosis(journal.events(), attempt.name) is None:
            found = cause_inquiry
            journal.append(to_event(cause_inquiry.diagnosis, found.suspects, found.accused, found.acquitted))
        events = journal.events()
        ended = _decide(chain, rules, attempt, job, events)
        event = replay(events).finalized.get(attempt.name)
        if event is None:
            ended = _act(chain, rules, ended, cause_inquiry, care)
            journal.append(
                AttemptFinalized(
                    attempt=attempt.name,
                    outcome=ended.outcome,
                    action=ended.action,
                    why=ended.why,
                    exit_why=ended.exit_why,
                    reason=ended.reason,
                )
            )
        else:
            ended = replace(
                ended,
                outcome=Outcome(event.outcome),
                action=Action(event.action),
                why=event.why,
                reason=event.reason,
                done=(*ended.done, *(_note_hang(chain, ended, cause_inquiry, care) or _quarantined(events, attempt))),
            )
        if care and (start := attempt_record.read_start(attempt)):
            care.note_step_times(chain.run.name, attempt, start.nodes, ended.ended)
        ended = replace(ended, last_output=date_last_output(chain.run, attempt))
        chain.run.make(attempt.path)
        chain.run.write(attempt.end, to_text(ended))
    log.info("finalized %s: %s, %s: %s", ended.attempt, ended.outcome.value, ended.action.value, ended.why)
    for line in ended.done:
        log.info("%s: %s", ended.attempt, line)
    return ended


def _act(
    chain: TrainArrays,
    rules: GuardSettings,
    ended: FinishedAttempt,
    cause_inquiry: CauseInquiry,
    care: NodeCare | None,
) -> FinishedAttempt:
    """Carry out the action; return `ended` with what was done."""
    ended = replace(ended, done=(*ended.done, *_note_hang(chain, ended, cause_inquiry, care)))
    if ended.suspects and cause_inquiry.diagnosis and care:
        removed = care.remove_suspects(chain, cause_inquiry.diagnosis, ended.suspects, cause_inquiry.verdicts)
        chain.note(
            ExclusionDecided(
                attempt=ended.attempt,
                nodes=removed.nodes,
                until=removed.until,
                excluded=removed.is_excluded,
                reason=explain_diagnosis(cause_inquiry.diagnosis),
                done=removed.done,
            )
        )
        ended = replace(ended, done=(*ended.done, *removed.done))
        if not removed.is_excluded and ended.action is Action.EXCLUDE_NODES:
            ended = _without_exclusion(chain, rules, replace(ended, why=f"{ended.why}; {removed.done[0]}"))
    elif ended.action is Action.EXCLUDE_NODES:
        ended = _without_exclusion(chain, rules, ended)
    reason = Reason(
        kind=ReasonKind.NOT_NEEDED if ended.action is Action.CANCEL_QUEUED else ReasonKind.ENDED,
        attempt=ended.attempt,
        outcome=ended.outcome.value,
        text=ended.why,
    )
    if ended.action is Action.CANCEL_QUEUED:
        arrays = chain.cancel(reason, queued_only=True)
        log.info("cancelled the queued tasks of %s: %s", ", ".join(arrays) or "no job", reason)
    elif ended.action is Action.HOLD_QUEUED:
        arrays = chain.hold(ended.reason or reason)
        log.info("held the queued tasks of %s: %s", ", ".join(arrays) or "no job", ended.reason or reason)
    return ended


def _without_exclusion(chain: TrainArrays, rules: GuardSettings, ended: FinishedAttempt) -> FinishedAttempt:
    """Return `ended` with the action if its suspects could not be excluded: then its end counts as any other."""
    ended = replace(ended, action=Action.CONTINUE)
    return hold_if_stuck(ended, _recent_attempts(chain.run, ended, chain.journal.events()), rules)


def _note_hang(
    chain: TrainArrays, ended: FinishedAttempt, cause_inquiry: CauseInquiry, care: NodeCare | None
) -> tuple[str, ...]:
    if (
        cause_inquiry.diagnosis
        and cause_inquiry.diagnosis.cause == hang_cause.CAUSE
        and cause_inquiry.diagnosis.node
        and care
    ):
        return care.note_hang(chain.run.name, ended.attempt, cause_inquiry.diagnosis.node, ended.ended)
    return ()


def _quarantined(events: Sequence[Event], attempt: Attempt) -> tuple[str, ...]:
    """Return what an interrupted finalization of the attempt did about nodes."""
    done = [event.done for event in events if isinstance(event, ExclusionDecided) and event.attempt == attempt.name]
    return tuple(done[-1]) if done else ()


def read_end(attempt: Attempt) -> FinishedAttempt | None:
    """Return the result of the finalization, or None before it. An invalid end.json counts as none."""
    try:
        return decode(FinishedAttempt, read_json(attempt.end, MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return None


def _decide(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, job: Job | None, events: Sequence[Event]
) -> FinishedAttempt:
    ended = _decide_without_cause(chain, rules, attempt, job, events)
    if event := find_diagnosis(events, attempt.name):
        diagnosis = recall_diagnosis(event)
        suspects = event.suspects if may_exclude(diagnosis.kind) else ()
        ended = replace(
            ended,
            kind=diagnosis.kind,
            cause=diagnosis.cause,
            says=diagnosis.says,
            suspects=suspects,
            done=event.acquitted,
            why=f"{ended.why}; {explain_diagnosis(diagnosis)}" if diagnosis.cause != "nothing" else ended.why,
        )
    if _is_overtaken(ended, events):
        return replace(ended, action=Action.CONTINUE, why=f"{ended.why}; launched or released again since")
    return decide_action(ended, _recent_attempts(chain.run, ended, events), rules)


def _decide_without_cause(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, job: Job | None, events: Sequence[Event]
) -> FinishedAttempt:
    """Return how the attempt ended, from the evidence without a diagnosis."""
    run, now, history = chain.run, chain.journal.clock.now(), replay(list(events))
    start = attempt_record.read_start(attempt)
    progress = read_attempt_progress(run, attempt, list(history.started), start)
    is_idle = progress.highest_step is None and not progress.new_checkpoint
    is_idle_again = is_idle and _has_left_before(run, attempt, history)
    evidence, at = gather_evidence(run, attempt, job, on_exit_0=rules.on_exit_0, is_idle_again=is_idle_again)
    evidence = replace(evidence, is_idle=is_idle)
    outcome, why = decide_outcome(evidence)
    log.debug("%s: %s by %s", attempt.name, outcome.value, evidence)
    started = start.at if start else history.started.get(attempt.name, at or now)
    return FinishedAttempt(
        attempt=attempt.name,
        outcome=outcome,
        action=ACTIONS[outcome],
        why=why,
        exit_why=why,
        started=started,
        ended=at or now,
        new_checkpoint=progress.new_checkpoint,
        limit_minutes=_read_limit_minutes(attempt, start),
        resume_step=progress.resume_step,
        highest_step=progress.highest_step,
        counts_anew=progress.counts_anew,
        resumed_from=progress.resumed_from,
        save_gap_minutes=progress.save_gap_minutes,
        has_unclear_saves=progress.has_unclear_saves,
    )


def _read_limit_minutes(attempt: Attempt, start: attempt_record.Start | None) -> float | None:
    """Return the minutes from the start to the time limit; None if unknown."""
    deadline_s = read_time(attempt.deadline)
    return (deadline_s - start.at.timestamp()) / 60 if start and deadline_s else None


def _has_left_before(run: RunDir, attempt: Attempt, history: TrainHistory) -> bool:
    """Whether the attempt before made steps, whose log is therefore readable, and exited with 0 by itself."""
    started = list(history.started)
    position = started.index(attempt.name) if attempt.name in started else len(started)
    previous = read_end(run.attempt(started[position - 1])) if position else None
    has_left = previous is not None and previous.outcome in {Outcome.EXITED, Outcome.DEADLINE}
    return has_left and previous is not None and previous.highest_step is not None


def _is_overtaken(ended: FinishedAttempt, events: Sequence[Event]) -> bool:
    """Return whether a person launched or released after the attempt ended. Their tasks are not cancelled or held."""
    starts = (event for event in events if isinstance(event, AttemptStarted))
    start_number = max((event.number for event in starts if event.attempt == ended.attempt), default=0)
    later = [event for event in events if event.number > start_number and event.when > ended.ended]
    if ended.action is Action.HOLD_QUEUED:
        return any(isinstance(event, Submitted | HoldReleased) for event in later)
    return ended.action is Action.CANCEL_QUEUED and any(isinstance(event, Submitted) for event in later)


def _recent_attempts(run: RunDir, ended: FinishedAttempt, events: Sequence[Event]) -> list[FinishedAttempt]:
    """Return the attempts since a person last restarted the train, `ended` included, in the order of their starts."""
    since = max((event.number for event in events if isinstance(event, _RESTARTS)), default=0)
    finalized = {event.attempt for event in events if isinstance(event, AttemptFinalized) and event.number > since}
    started = [attempt for attempt in replay(list(events)).started if attempt in finalized - {ended.attempt}]
    earlier = [done for attempt in started if (done := read_end(run.attempt(attempt)))]
    return sorted([*earlier, ended], key=lambda finished: finished.started) if started else [ended]


def finalize_ended(
    chain: TrainArrays,
    rules: GuardSettings,
    snapshot: TrainSnapshot,
    *,
    own: str = "",
    past: Sequence[Job] | None = None,
    care: NodeCare | None = None,
) -> list[FinishedAttempt]:
    """Finalize every ended attempt that is not finalized, in the order of their starts; never `own`.

    `past` holds accounting's rows of jobs that have left the queue; accounting is asked if `past` is None.
    """
    ended = [attempt for attempt in _ended_attempts(chain.run, snapshot) if attempt.name != own]
    if past is None:
        past = load_past_jobs(chain.slurm, find_vanished(chain.run, snapshot) if ended else [])
    return [
        finalize(chain, rules, attempt, job=_find_final_row(attempt, [*snapshot.jobs, *past]), care=care)
        for attempt in ended
    ]


def find_unfinalized(run: RunDir, snapshot: TrainSnapshot) -> list[Attempt]:
    """Return the attempts that are not finalized, as `list_unfinalized`."""
    return list_unfinalized(run, snapshot.history)


def _is_over(attempt: Attempt, jobs: Sequence[Job]) -> bool:
    """Return whether the queue shows no running job of the attempt: none, a later attempt, or an ended job."""
    rows = [job for job in jobs if is_row_of(job, attempt)]
    return all(job.restarts > attempt.restart or job.state.is_final or job.state.is_waiting for job in rows)


def _find_final_row(attempt: Attempt, jobs: Sequence[Job]) -> Job | None:
    """Return Slurm's final row of this attempt, not of a later attempt of the same job."""
    rows = (job for job in jobs if is_row_of(job, attempt) and job.restarts == attempt.restart and job.state.is_final)
    return next(rows, None)


def find_vanished(run: RunDir, snapshot: TrainSnapshot) -> list[str]:
    """Return the arrays of ended, unfinalized attempts whose jobs have left the queue."""
    return list(
        dict.fromkeys(
            attempt.array
            for attempt in _ended_attempts(run, snapshot)
            if _find_final_row(attempt, snapshot.jobs) is None
        )
    )


def load_past_jobs(slurm: Slurm, arrays: Sequence[str]) -> list[Job]:
    """Return accounting's rows of `arrays`, by one query; empty if accounting does not answer."""
    try:
        return slurm.past(arrays) if arrays else []
    except Unreachable:
        return []


def _ended_attempts(run: RunDir, snapshot: TrainSnapshot) -> list[Attempt]:
    return [attempt for attempt in find_unfinalized(run, snapshot) if _is_over(attempt, snapshot.jobs)]
