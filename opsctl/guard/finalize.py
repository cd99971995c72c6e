"""Settlement: the one idempotent step that turns an ended attempt into an outcome, and acts on it.

Anyone who owns the train may finalize: the guard of the attempt itself, that of the next one, a cron tick, a verb.
Killed at
any line, it is done again from the start by whoever comes next: acting twice changes nothing, and end.json, which says
that nothing is left to do, is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial

from opsctl.diagnosis import hang_cause
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import OpsctlError, Unreachable
from opsctl.guard import attempt_record
from opsctl.guard.diagnose import describe_diagnosis, diagnose, find_diagnosis, recall_diagnosis, to_event
from opsctl.guard.exit_evidence import gather_evidence
from opsctl.guard.node_care import NodeCare, find_suspects
from opsctl.guard.outcome import (
    ACTION_BY_CAUSE,
    ACTIONS,
    Action,
    FinishedAttempt,
    Outcome,
    decide_action,
    decide_outcome,
    is_burning,
    needs_diagnosis,
)
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.model import Job
from opsctl.nodes.health.node_state import Verdict
from opsctl.ports import Scheduler
from opsctl.settings.loader import GuardSettings
from opsctl.state.journal import Event, EventKind, replay
from opsctl.state.lease import lease
from opsctl.state.run_dir import Attempt, RunDir

ATTEMPT = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)", re.ASCII)
_ANEW = {EventKind.SUBMITTED, EventKind.RELEASED, EventKind.EDITED}
"""After these, earlier crashes say nothing: somebody has looked at it."""


def finalize(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, *, job: Job | None = None, care: NodeCare | None = None
) -> FinishedAttempt:
    """Settle an ended attempt, or say how it was finalized. `job` is what Slurm said of it when it was over, if
    anything;
    without `care` nothing is done about nodes.

    Raises OpsctlError if it could not act or not write it down; then the attempt is as unfinalized as before.
    """
    journal = chain.journal
    if done := read_end(attempt):
        return done
    # It may take a while, so before the lease.
    cause_inquiry = _ask(chain, rules, attempt, job, care)
    with lease(chain.run.path, journal.clock):
        if done := read_end(attempt):
            return done
        if cause_inquiry.diagnosis and find_diagnosis(journal.events(), attempt.name) is None:
            journal.append(EventKind.DIAGNOSED, **to_event(cause_inquiry.diagnosis, cause_inquiry.suspects))
        events = journal.events()
        ended = _decide(chain, rules, attempt, job, events)
        event = replay(events).finalized.get(attempt.name)
        if event is None:
            ended = _act(chain, ended, cause_inquiry, care)
            journal.append(
                EventKind.ATTEMPT_FINALIZED,
                attempt=attempt.name,
                outcome=ended.outcome,
                action=ended.action,
                why=ended.why,
            )
        else:
            ended = replace(
                ended,
                outcome=Outcome(event.data["outcome"]),
                action=Action(event.data["action"]),
                why=event.data["why"],
                done=_note_hang(chain, ended, cause_inquiry, care) or _quarantined(events, attempt),
            )
        chain.run.make(attempt.path)
        chain.run.write(attempt.end, json.dumps(asdict(ended), default=str, indent=1) + "\n")
    return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseInquiry:
    """What was found out about an end before anything is decided."""

    found: Diagnosis | None = None
    """None where nobody needs to know."""
    suspects: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


def _ask(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, job: Job | None, care: NodeCare | None
) -> CauseInquiry:
    """Why it ended, and how the suspects are. Raises Unreachable where Slurm does not say which nodes there are: the
    suspects are written down only once."""
    events = chain.journal.events()
    event = find_diagnosis(events, attempt.name)
    if event is not None:
        diagnosis, suspects = recall_diagnosis(event), tuple(event.data["suspects"])
    else:
        ended = _bare(chain, attempt, job, events)
        if not needs_diagnosis(ended.outcome, is_short=is_burning(ended, rules)):
            return CauseInquiry()
        allocated = _allocated(attempt, job)
        also = partial(care.add_history, allocated=allocated, at=ended.ended) if care else _nothing_more
        diagnosis = diagnose(chain.journal, attempt, ended.outcome, seconds=rules.diagnosis_seconds, also=also)
        suspects = _suspects(chain, allocated, diagnosis) if care and _may_exclude(diagnosis) else ()
    if care is None or not _may_exclude(diagnosis):
        return CauseInquiry(found=diagnosis)
    verdicts = care.check(chain.scheduler, suspects, seconds=rules.node_check_seconds)
    return CauseInquiry(found=diagnosis, suspects=suspects, verdicts=verdicts)


def _nothing_more(diagnosis: Diagnosis) -> Diagnosis:
    return diagnosis


def _allocated(attempt: Attempt, job: Job | None) -> str:
    began = attempt_record.read_start(attempt)
    return began.nodes if began else job.nodes if job else ""


def _suspects(chain: TrainArrays, allocated: str, diagnosis: Diagnosis) -> tuple[str, ...]:
    try:
        return find_suspects(diagnosis, allocated, chain.scheduler.nodes()) if allocated else ()
    except Unreachable:
        raise
    except OpsctlError:
        return ()


def _may_exclude(diagnosis: Diagnosis) -> bool:
    return ACTION_BY_CAUSE.get(diagnosis.kind) is Action.EXCLUDE_NODES


def _act(
    chain: TrainArrays, ended: FinishedAttempt, cause_inquiry: CauseInquiry, care: NodeCare | None
) -> FinishedAttempt:
    """Do what was decided; the end, with what came of it."""
    ended = replace(ended, done=_note_hang(chain, ended, cause_inquiry, care))
    if ended.suspects and cause_inquiry.diagnosis and care:
        taken = care.remove_suspects(chain, cause_inquiry.diagnosis, ended.suspects, cause_inquiry.verdicts)
        chain.note(
            EventKind.QUARANTINED,
            attempt=ended.attempt,
            nodes=taken.nodes,
            until=taken.until.isoformat(),
            excluded=taken.is_excluded,
            why=describe_diagnosis(cause_inquiry.diagnosis),
            done=taken.done,
        )
        ended = replace(ended, done=taken.done)
        if not taken.is_excluded and ended.action is Action.EXCLUDE_NODES:
            ended = replace(ended, action=Action.CONTINUE, why=f"{ended.why}; {taken.done[0]}")
    elif ended.action is Action.EXCLUDE_NODES:
        ended = replace(ended, action=Action.CONTINUE)
    why = f"{ended.attempt} {ended.outcome.value}: {ended.why}"
    if ended.action is Action.CANCEL_QUEUED:
        chain.cancel(why, queued_only=True)
    elif ended.action is Action.HOLD_QUEUED:
        chain.hold(ended.why)
    return ended


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
    """What was done about nodes when it was finalized, by somebody who was cut off before end.json."""
    found = [
        event.data["done"]
        for event in events
        if event.kind is EventKind.QUARANTINED and event.data["attempt"] == attempt.name
    ]
    return tuple(found[-1]) if found else ()


def read_end(attempt: Attempt) -> FinishedAttempt | None:
    """How the attempt was finalized, or None if it was not."""
    try:
        given = json.loads(attempt.end.read_text())
        made = {
            **{key: datetime.fromisoformat(given[key]) for key in ("started", "ended")},
            **{key: tuple(given.get(key, ())) for key in ("suspects", "done")},
            "outcome": Outcome(given["outcome"]),
            "action": Action(given["action"]),
            "kind": CauseKind(given.get("kind", CauseKind.UNKNOWN)),
        }
        return FinishedAttempt(**{**given, **made})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _decide(
    chain: TrainArrays, rules: GuardSettings, attempt: Attempt, job: Job | None, events: Sequence[Event]
) -> FinishedAttempt:
    ended = _bare(chain, attempt, job, events)
    if event := find_diagnosis(events, attempt.name):
        diagnosis = recall_diagnosis(event)
        suspects = tuple(event.data["suspects"]) if _may_exclude(diagnosis) else ()
        ended = replace(
            ended,
            kind=diagnosis.kind,
            cause=diagnosis.cause,
            suspects=suspects,
            why=f"{ended.why}; {describe_diagnosis(diagnosis)}" if diagnosis.cause != "nothing" else ended.why,
        )
    if _is_overtaken(ended, events):
        return replace(ended, action=Action.CONTINUE, why=f"{ended.why}; launched or released again since")
    return decide_action(ended, _recent_attempts(chain.run, ended, events), rules)


def _bare(chain: TrainArrays, attempt: Attempt, job: Job | None, events: Sequence[Event]) -> FinishedAttempt:
    """How it ended, without why."""
    run, now = chain.run, chain.journal.clock.now()
    evidence, at = gather_evidence(run, attempt, job)
    outcome, why = decide_outcome(evidence)
    began = attempt_record.read_start(attempt)
    started = began.at if began else replay(list(events)).started.get(attempt.name, at or now)
    return FinishedAttempt(
        attempt=attempt.name,
        outcome=outcome,
        action=ACTIONS[outcome],
        why=why,
        started=started,
        ended=at or now,
        new_checkpoint=began is not None and attempt_record.find_newest_checkpoint(run) > began.checkpoint,
    )


def _is_overtaken(ended: FinishedAttempt, events: Sequence[Event]) -> bool:
    """Whether somebody has decided since the attempt ended: what they launched is not to be cancelled, nor held
    again."""
    began = max(
        (e.number for e in events if e.kind is EventKind.ATTEMPT_STARTED and e.data["attempt"] == ended.attempt),
        default=0,
    )
    later = {event.kind for event in events if event.number > began and event.when > ended.ended}
    if ended.action is Action.HOLD_QUEUED:
        return bool(later & {EventKind.SUBMITTED, EventKind.RELEASED})
    return ended.action is Action.CANCEL_QUEUED and EventKind.SUBMITTED in later


def _recent_attempts(run: RunDir, ended: FinishedAttempt, events: Sequence[Event]) -> list[FinishedAttempt]:
    """The attempts finalized since somebody last looked after the train, and this one, in the order in which they
    began."""
    since = max((event.number for event in events if event.kind in _ANEW), default=0)
    finalized = {
        event.data["attempt"] for event in events if event.kind is EventKind.ATTEMPT_FINALIZED and event.number > since
    }
    began = [attempt for attempt in replay(list(events)).started if attempt in finalized - {ended.attempt}]
    earlier = [done for attempt in began if (done := read_end(run.attempt(attempt)))]
    return sorted([*earlier, ended], key=lambda finished: finished.started) if began else [ended]


def finalize_ended(
    chain: TrainArrays,
    rules: GuardSettings,
    snapshot: TrainSnapshot,
    *,
    own: str = "",
    past: Sequence[Job] | None = None,
    care: NodeCare | None = None,
) -> list[FinishedAttempt]:
    """Settle every attempt that is over and that nobody finalized, in the order in which they began; never `own`.

    `past` is what accounting says of those that the queue has forgotten, if that was asked already.
    """
    over = [attempt for attempt in _ended_attempts(chain.run, snapshot) if attempt.name != own]
    past = load_past_jobs(chain.scheduler, find_vanished(chain.run, snapshot) if over else []) if past is None else past
    return [
        finalize(chain, rules, attempt, job=_final(attempt, [*snapshot.jobs, *past]), care=care) for attempt in over
    ]


def find_unfinalized(run: RunDir, snapshot: TrainSnapshot) -> list[Attempt]:
    """The attempts without a finalization, in the order of the journal; at the end those that the journal does not
    know."""
    began = [name for name in snapshot.history.started if name not in snapshot.history.finalized]
    lying = sorted(
        attempt.name for attempt in run.attempts() if ATTEMPT.fullmatch(attempt.name) and not attempt.end.exists()
    )
    return [run.attempt(name) for name in dict.fromkeys([*began, *lying])]


def _is_over(attempt: Attempt, jobs: Sequence[Job]) -> bool:
    """Slurm answered, and does not have the attempt's job, or only a later attempt of it, or says that it ended."""
    rows = [job for job in jobs if is_row_of(job, attempt)]
    return all(job.restarts > attempt.restart or job.state.is_final or job.state.is_waiting for job in rows)


def is_row_of(job: Job, attempt: Attempt) -> bool:
    """Whether a row of the queue is that of the attempt's job: of this attempt, or of one before or after a requeue."""
    return job.array == attempt.array and (
        job.id == attempt.array if attempt.task is None else attempt.task in job.tasks
    )


def _final(attempt: Attempt, jobs: Sequence[Job]) -> Job | None:
    """What Slurm says of this very attempt, not of a later one of the same job."""
    own = (job for job in jobs if is_row_of(job, attempt) and job.restarts == attempt.restart and job.state.is_final)
    return next(own, None)


def find_vanished(run: RunDir, snapshot: TrainSnapshot) -> list[str]:
    """The arrays of ended attempts that nobody finalized and of which the queue says nothing any more."""
    return list(
        dict.fromkeys(
            attempt.array for attempt in _ended_attempts(run, snapshot) if _final(attempt, snapshot.jobs) is None
        )
    )


def load_past_jobs(scheduler: Scheduler, arrays: Sequence[str]) -> list[Job]:
    """One question to accounting for all of them; nothing where it does not answer."""
    try:
        return scheduler.past(arrays) if arrays else []
    except Unreachable:
        return []


def _ended_attempts(run: RunDir, snapshot: TrainSnapshot) -> list[Attempt]:
    return [attempt for attempt in find_unfinalized(run, snapshot) if _is_over(attempt, snapshot.jobs)]
