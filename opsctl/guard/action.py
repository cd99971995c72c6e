"""What is done about the queued tasks after an attempt: the train goes on, is held, or is over.

A train that advances is never held. An attempt has advanced the train if it left a new checkpoint, or if a later
attempt went on from a step that no attempt before had as its start, or from a checkpoint that no attempt before named.
"""

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum

from opsctl.base.nodesets import fold
from opsctl.diagnosis.blame import find_rule, may_exclude
from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome, read_end
from opsctl.guard.free_space import DISK_FULL
from opsctl.guard.stop_request import StopKind
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import RESTARTS, AttemptFinalized, AttemptStarted, Event, HoldReleased, Submitted
from opsctl.state.journal import replay
from opsctl.state.reasons import NeededChange, Reason, ReasonKind
from opsctl.state.run_dir import RunDir

ACTIONS: dict[Outcome, Action] = dict.fromkeys(Outcome, Action.CONTINUE) | {
    Outcome.FINISHED: Action.CANCEL_QUEUED,
    Outcome.KILLED: Action.CANCEL_QUEUED,
    Outcome.PAUSED: Action.HOLD_QUEUED,
    Outcome.IDLE: Action.HOLD_QUEUED,
    Outcome.REFUSED: Action.HOLD_QUEUED,
}
"""The action that follows from the outcome alone."""

BURNING = frozenset({Outcome.CRASHED, Outcome.EXITED, Outcome.NODE_FAILED, Outcome.HUNG, Outcome.LOST})
"""Outcomes that burn queued tasks if attempts are short and do not advance the train.

Attempts that were ended by the time limit, by a preemption or by a person say nothing about the train.
"""

OUTSIDE_CODES = frozenset(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))
"""Exit codes of a body that a signal from outside ended. Other signals are errors of the program."""
OUTSIDE_CAUSES = frozenset({"killed", "interrupted", "terminated"})
"""Causes of the catalogue that say no more than that."""

NOT_STARTED = frozenset({Outcome.SKIPPED, Outcome.NODE_REFUSED})
"""Outcomes of attempts whose body never ran. Such attempts are no evidence about the train."""

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
LATE_FACTOR = 2
"""A checkpoint is late after this multiple of the longest time that the train has needed for one."""


class Advance(StrEnum):
    """Whether an attempt has advanced the train."""

    YES = "yes"
    POSSIBLE = "possible"
    """The attempt made steps, and only the start of the next attempt shows whether these steps were saved."""
    NO = "no"
    UNKNOWN = "unknown"
    """Neither a checkpoint nor a step of any attempt is known, or the steps and the checkpoints show nothing."""


EXCUSED = frozenset(
    {Outcome.TIMED_OUT, Outcome.DEADLINE, Outcome.STOPPED, Outcome.RESTARTED, Outcome.CANCELLED, Outcome.PREEMPTED}
)
"""Outcomes that are not the fault of the train. The time limit still counts if the train stands still."""
LIMITED = frozenset({Outcome.TIMED_OUT, Outcome.DEADLINE})
LONG_SHARE = 0.5
"""Share of its time limit after which an attempt is long, although all attempts of a short task are short."""
_CHANGES: dict[CauseKind, NeededChange] = {
    CauseKind.CODE: NeededChange.CODE,
    CauseKind.CONFIG: NeededChange.CONFIG,
    CauseKind.MEMORY: NeededChange.MEMORY,
    CauseKind.STORAGE: NeededChange.STORAGE,
}


def judge_advances(attempts: Sequence[FinishedAttempt]) -> list[Advance]:
    """Return for each attempt whether it has advanced the train. `attempts` are in the order of their starts."""
    places = find_places(attempts)
    logs_places = any(highest is not None for _, highest in places)
    shows_saves = any(attempt.new_checkpoint for attempt in attempts)
    is_overdue = shows_saves and _is_overdue(attempts)
    advances: list[Advance] = []
    best_start = -1.0
    for position, attempt in enumerate(attempts):
        start, highest = places[position]
        best_start = max(best_start, -1 if start is None else start)
        next_start = next((later for later, _ in places[position + 1 :] if later is not None), None)
        if attempt.new_checkpoint or _is_resumed_anew(attempts, position):
            advances.append(Advance.YES)
        elif highest is None:
            is_standing = logs_places or (is_overdue and not attempt.has_unclear_saves)
            advances.append(Advance.NO if is_standing else Advance.UNKNOWN)
        elif next_start is not None and next_start > best_start:
            advances.append(Advance.YES)
        elif next_start is None and not shows_saves and highest > best_start:
            advances.append(Advance.POSSIBLE)
        else:
            advances.append(Advance.UNKNOWN if attempt.counts_anew else Advance.NO)
    return advances


def find_places(attempts: Sequence[FinishedAttempt]) -> list[tuple[float | None, float | None]]:
    """Return where each attempt began and how far it got: by its steps, or else, or if steps count anew, by its epochs.

    A place in another unit than that of most attempts is unknown.
    """
    logs_steps = any(attempt.highest_step is not None for attempt in attempts)
    counts_anew = any(attempt.counts_anew for attempt in attempts)
    logs_epochs = any(attempt.highest_epoch is not None for attempt in attempts)
    if logs_epochs and (counts_anew or not logs_steps):
        return [(attempt.resume_epoch, attempt.highest_epoch) for attempt in attempts]
    return [(attempt.resume_step, attempt.highest_step) for attempt in attempts]


def _is_overdue(attempts: Sequence[FinishedAttempt]) -> bool:
    """Whether the train has run without a new checkpoint for much longer than it ever needed for one.

    Counts the time of all attempts since the last new checkpoint: a trainer with rare checkpoints may save elsewhere
    too, and go on from there. Once a checkpoint was seen, checkpoints that show nothing may be new ones.
    """
    waited_minutes = needed_minutes = 0.0
    for attempt in attempts:
        if attempt.new_checkpoint:
            gap = attempt.save_gap_minutes
            in_attempt = attempt.minutes if gap is None else LATE_FACTOR * gap
            needed_minutes = max(needed_minutes, LATE_FACTOR * waited_minutes + in_attempt)
        is_reset = attempt.new_checkpoint or (attempt.has_unclear_saves and needed_minutes > 0)
        waited_minutes = 0.0 if is_reset else waited_minutes + attempt.minutes
    return waited_minutes > needed_minutes


def _is_resumed_anew(attempts: Sequence[FinishedAttempt], position: int) -> bool:
    """Whether the next attempt that names its checkpoint went on from one that no attempt before had named.

    An older checkpoint than the last is no advance: the train falls back from one damaged checkpoint to the next.
    """
    later = next((attempt.resumed_from for attempt in attempts[position + 1 :] if attempt.resumed_from), "")
    before = [attempt.resumed_from for attempt in attempts[: position + 1] if attempt.resumed_from]
    return bool(later) and later not in before and not (before and _is_older(later, before[-1]))


def _is_older(text: str, other: str) -> bool:
    """Whether of two statements about a checkpoint, equal but for their numbers, the first has the lower numbers."""
    numbers, others = ([int(digits) for digits in _NUMBER.findall(named)] for named in (text, other))
    return _NUMBER.sub("#", text) == _NUMBER.sub("#", other) and numbers < others


def choose_action(
    run: RunDir, ended: FinishedAttempt, events: Sequence[Event], rules: GuardSettings
) -> FinishedAttempt:
    """Return `ended` with its action, from its cause, the attempts before it and what people did since."""
    if _is_overtaken(ended, events):
        return replace(ended, action=Action.CONTINUE, why=f"{ended.why}; launched or released again since")
    return decide_action(ended, list_recent_ends(run, ended, events), rules)


def _is_overtaken(ended: FinishedAttempt, events: Sequence[Event]) -> bool:
    """Return whether a person launched or released after the attempt ended. Their tasks are not cancelled or held."""
    starts = (event for event in events if isinstance(event, AttemptStarted))
    start_number = max((event.number for event in starts if event.attempt == ended.attempt), default=0)
    later = [event for event in events if event.number > start_number and event.when > ended.ended]
    if ended.action is Action.HOLD_QUEUED:
        return any(isinstance(event, Submitted | HoldReleased) for event in later)
    return ended.action is Action.CANCEL_QUEUED and any(isinstance(event, Submitted) for event in later)


def list_recent_ends(run: RunDir, ended: FinishedAttempt, events: Sequence[Event]) -> list[FinishedAttempt]:
    """Return the attempts since a person last restarted the train, `ended` included, in the order of their starts."""
    since = max((event.number for event in events if isinstance(event, RESTARTS)), default=0)
    finalized = {event.attempt for event in events if isinstance(event, AttemptFinalized) and event.number > since}
    started = [attempt for attempt in replay(list(events)).started if attempt in finalized - {ended.attempt}]
    earlier = [done for attempt in started if (done := read_end(run.attempt(attempt)))]
    return sorted([*earlier, ended], key=lambda finished: finished.started) if started else [ended]


def decide_action(ended: FinishedAttempt, attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> FinishedAttempt:
    """Return `ended` with its action, from its cause and the attempts before it. `attempts` ends with `ended`."""
    if ended.action is not Action.CONTINUE:
        return ended
    if may_exclude(ended.kind) and ended.suspects:
        excluded = replace(ended, action=Action.EXCLUDE_NODES)
        return hold_if_stuck(excluded, [*attempts[:-1], excluded], rules)
    return hold_if_stuck(ended, attempts, rules)


def hold_if_stuck(ended: FinishedAttempt, attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> FinishedAttempt:
    """Return `ended` with the action to hold the train if the train does not get on. `attempts` ends with `ended`."""
    started = [attempt for attempt in attempts if attempt.outcome not in NOT_STARTED]
    for find_loop in (find_crash_loop, find_fault_loop, find_standstill):
        if loop := find_loop(started, rules):
            reason = replace(
                loop,
                attempt=ended.attempt,
                outcome=ended.outcome.value,
                text=ended.why,
                change=_find_needed_change(started[-1]),
            )
            return replace(ended, action=Action.HOLD_QUEUED, why=str(reason), reason=reason)
    return ended


def find_crash_loop(attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> Reason | None:
    """Return why the train must be held for a crash loop; None if it may go on. `attempts` has the newest last.

    Failures from outside hold the train as well, but only as many as those that make a standstill.
    """
    loop: list[FinishedAttempt] = []
    for attempt, advance in _from_newest(attempts):
        if advance in {Advance.YES, Advance.POSSIBLE} or (advance is Advance.UNKNOWN and _is_long(attempt, rules)):
            break
        if _is_excused(attempt) or attempt.outcome in NOT_STARTED:
            continue
        if attempt.outcome not in BURNING or attempt.minutes >= rules.short_attempt_minutes:
            break
        loop.append(attempt)
    own = [attempt for attempt in loop if not _is_from_outside(attempt)]
    if len(own) < rules.short_attempts and len(loop) < max(rules.short_attempts, rules.stalled_attempts):
        return None
    return Reason(
        kind=ReasonKind.CRASH_LOOP,
        count=len(loop),
        minutes=rules.short_attempt_minutes,
        attempts=_list(loop),
        is_progress_unknown=not any(map(_shows_progress, attempts)),
    )


def _is_long(attempt: FinishedAttempt, rules: GuardSettings) -> bool:
    """Whether an attempt whose progress is unknown worked for so long that it was no failure at the start."""
    limit = float("inf") if attempt.limit_minutes is None else LONG_SHARE * attempt.limit_minutes
    return attempt.minutes >= min(rules.short_attempt_minutes, limit)


def find_fault_loop(attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> Reason | None:
    """Return why the train must be held for a repeated fault; None if it may go on.

    The attempts may be long. A single full disk, or a bug that the trainer gets past, is no reason. If nothing is known
    of the progress, only the same message shows the same fault.
    """
    last = attempts[-1] if attempts else None
    if last is None or find_rule(last.kind, last.cause).action != Action.HOLD_QUEUED:
        return None
    judged = _from_newest(attempts)
    count = int(judged[:1] != [] and judged[0][0] is not last and _ends_as_before(attempts))
    for attempt, advance in judged:
        if attempt.cause != last.cause or advance in {Advance.YES, Advance.POSSIBLE}:
            break
        if advance is Advance.UNKNOWN and attempt.signature != last.signature:
            break
        count += 1
    # A full disk has one more attempt, before which the guard waits for space. `fault_attempts = 1` holds at once.
    is_waited_for = last.cause == DISK_FULL and rules.fault_attempts > 1
    if count < rules.fault_attempts + is_waited_for:
        return None
    return Reason(kind=ReasonKind.FAULT_LOOP, count=count, cause_kind=last.kind.value, cause=last.cause)


def _ends_as_before(attempts: Sequence[FinishedAttempt]) -> bool:
    """Whether the newest attempt began and ended where the one before did, with the same words.

    Whatever the newest attempt may have saved, the next one meets the same fault at the same step.
    """
    if len(attempts) < 2:
        return False
    before, last = find_places(attempts)[-2:]
    return before == last and None not in last and attempts[-2].signature == attempts[-1].signature


def find_standstill(attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> Reason | None:
    """Return why the train must be held because it stands still; None if it may go on.

    Counts attempts of any length that certainly did not advance the train, and that got no stop request. Short
    attempts on hardware that was excluded count even if nothing is known of their progress: otherwise a mistaken cause
    would take every node, one after the other.
    """
    standing: list[FinishedAttempt] = []
    for attempt, advance in _from_newest(attempts):
        is_on_bad_hardware = attempt.action is Action.EXCLUDE_NODES
        is_short = attempt.minutes < rules.short_attempt_minutes
        if advance is Advance.UNKNOWN and not (is_on_bad_hardware and is_short):
            break
        if advance in {Advance.YES, Advance.POSSIBLE}:
            break
        if not _is_excused(attempt) or attempt.outcome in LIMITED or is_on_bad_hardware:
            standing.append(attempt)
    if len(standing) < rules.stalled_attempts:
        return None
    steps = [attempt.highest_step for attempt in standing if attempt.highest_step is not None]
    epochs = [attempt.highest_epoch for attempt in standing if attempt.highest_epoch is not None]
    return Reason(
        kind=ReasonKind.STANDSTILL,
        count=len(standing),
        step=max(steps, default=None),
        epoch=max(epochs, default=None),
        attempts=_list(standing),
    )


def _from_newest(attempts: Sequence[FinishedAttempt]) -> list[tuple[FinishedAttempt, Advance]]:
    """Return attempts with their advance, the newest first, without a newest attempt that may have advanced."""
    judged = list(zip(attempts, judge_advances(attempts), strict=True))
    if judged and judged[-1][1] is Advance.POSSIBLE:
        judged.pop()
    return judged[::-1]


def _is_excused(attempt: FinishedAttempt) -> bool:
    """Whether the end was not the fault of the train: asked for, or by hardware that is excluded now."""
    return attempt.outcome in EXCUSED or attempt.action is Action.EXCLUDE_NODES


def _is_from_outside(attempt: FinishedAttempt) -> bool:
    """Whether a node or a signal ended the attempt, so that the train itself may be well."""
    if attempt.outcome is Outcome.NODE_FAILED:
        return True
    was_signalled = attempt.code in OUTSIDE_CODES or attempt.cause in OUTSIDE_CAUSES
    return attempt.outcome is Outcome.CRASHED and was_signalled and attempt.kind is CauseKind.UNKNOWN


def _shows_progress(attempt: FinishedAttempt) -> bool:
    return attempt.new_checkpoint or attempt.highest_step is not None or attempt.highest_epoch is not None


def _list(newest_first: Sequence[FinishedAttempt]) -> tuple[str, ...]:
    return tuple(f"{attempt.attempt} {attempt.outcome.value}" for attempt in reversed(newest_first))


def _find_needed_change(last: FinishedAttempt) -> NeededChange:
    """Return what has to change before a release helps."""
    return NeededChange.NODES if last.suspects else _CHANGES.get(last.kind, NeededChange.CAUSE)


def find_excluding(finalized: Sequence[FinishedAttempt], nodes: Collection[str]) -> FinishedAttempt | None:
    """Return the first of the attempts whose end has excluded one of `nodes`."""
    excluding = (finished for finished in finalized if finished.action is Action.EXCLUDE_NODES)
    return next((finished for finished in excluding if set(nodes) & set(finished.suspects)), None)


def find_reason_to_leave(finalized: Sequence[FinishedAttempt], nodes: Collection[str]) -> tuple[StopKind, str] | None:
    """Return why a further attempt on `nodes` must not run its body: the train is over, or one of the nodes is out."""
    if final := next((finished for finished in finalized if finished.action.is_final), None):
        return StopKind.SKIPPED, f"{final.attempt} {final.outcome.value}: {final.why}"
    if bad := find_excluding(finalized, nodes):
        return StopKind.NODE_REFUSED, f"{bad.why}: this attempt has {fold(bad.suspects)} as well"
    return None
