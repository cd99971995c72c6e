"""The diagnosis of an ended attempt, made once and in bounded time. An error in here makes the cause unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from opsctl.base.errors import ConfigError
from opsctl.base.model import JobState
from opsctl.diagnosis.causes import CauseKind, Weight
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.exit_reasons import ExitReason, explain_by_slurm, explain_by_trainer
from opsctl.diagnosis.hang_cause import diagnose_hang
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard import attempt_record
from opsctl.guard.outcome import Outcome
from opsctl.guard.stop_request import read_stop_request
from opsctl.host.isolation import Failed, Isolation
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.events import AttemptStarted, Diagnosed, Event
from opsctl.state.journal import Journal, replay
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import read_stop_reason

STATE_BY_OUTCOME = {
    Outcome.TIMED_OUT: JobState.TIMEOUT,
    Outcome.NODE_FAILED: JobState.NODE_FAIL,
    Outcome.CANCELLED: JobState.CANCELLED,
    Outcome.PREEMPTED: JobState.PREEMPTED,
}
"""Slurm's state for outcomes that were decided by this state."""
_PLANNED = {
    Outcome.EXITED: (CauseKind.NONE, "the body exited with 0, and the training is to go on"),
    Outcome.DEADLINE: (CauseKind.TIME_LIMIT, "the trainer exited with 0 before the time limit"),
    Outcome.STOPPED: (CauseKind.SWITCH, "the trainer stopped on request"),
}
"""What an outcome with exit code 0 says about its cause. An error in the logs outweighs this."""


def diagnose(
    journal: Journal,
    attempt: Attempt,
    outcome: Outcome,
    *,
    timeout_s: float,
    complete: Callable[[Diagnosis], Diagnosis],
) -> Diagnosis:
    """Return why `attempt` ended, within `timeout_s`. `complete` adds other evidence. Raises nothing."""
    call = partial(_diagnose, journal, attempt, outcome, complete)
    result = Isolation[str, Diagnosis](journal.clock, timeout_s).run({attempt.name: call})[attempt.name]
    if isinstance(result, Failed):
        says = f"the diagnosis failed: {result.why}"
        return Diagnosis(
            kind=CauseKind.UNKNOWN, cause="nothing", says=says, attempt=attempt.name, evidence=result.traceback
        )
    return result


def _diagnose(
    journal: Journal, attempt: Attempt, outcome: Outcome, complete: Callable[[Diagnosis], Diagnosis]
) -> Diagnosis:
    run, events = journal.run, journal.events()
    started = list(replay(events).started)
    position = started.index(attempt.name) if attempt.name in started else len(started)
    previous = find_diagnosis(events, started[position - 1]) if position else None
    exit_reason = explain_by_trainer(read_stop_reason(attempt.stop_reason), read_stop_request_text(attempt))
    exit_reason = exit_reason or explain_by_slurm(STATE_BY_OUTCOME.get(outcome, JobState.UNKNOWN))
    exit_reason = exit_reason or explain_by_outcome(outcome)
    find_cause = diagnose_hang if outcome is Outcome.HUNG else diagnose_attempt
    logs = load_attempt_logs(run, attempt.name, started, exit_reason)
    return complete(find_cause(run, logs, before=recall_diagnosis(previous) if previous else None))


def explain_by_outcome(outcome: Outcome) -> ExitReason | None:
    """Return the reason that an outcome itself states: the attempt ended as the trainer or a person planned."""
    if outcome not in _PLANNED:
        return None
    kind, says = _PLANNED[outcome]
    return ExitReason(kind=kind, says=says, is_final=False, yields_to=Weight.ERROR)


def read_stop_request_text(attempt: Attempt) -> str:
    """Return the reason in the stop request; empty without a request."""
    stop_request = read_stop_request(attempt)
    return stop_request.why if stop_request else ""


def load_attempt_logs(
    run: RunDir, name: str, started: Sequence[str], exit_reason: ExitReason | None
) -> FinishedAttemptLogs:
    """Return where the logs of an attempt lie and what else is known. `started` lists all attempts in order."""
    later = started[started.index(name) + 1 :] if name in started else ()
    start = attempt_record.read_start(run.attempt(name))
    next_start = attempt_record.read_start(run.attempt(later[0])) if later else None
    return FinishedAttemptLogs(
        attempt=name,
        begin=start.main_log if start else 0,
        end=(next_start.main_log or None) if next_start else None,
        exit_reason=exit_reason,
        ranks=_read_world_size(run),
    )


def _read_world_size(run: RunDir) -> int | None:
    try:
        return parse(TrainSettings, read_toml(run.config), str(run.config)).world_size
    except ConfigError:
        return None


def to_event(
    diagnosis: Diagnosis, suspects: Sequence[str], accused: Sequence[str] = (), acquitted: Sequence[str] = ()
) -> Diagnosed:
    """Return the journal entry of a diagnosis."""
    return Diagnosed(
        attempt=diagnosis.attempt,
        cause_kind=diagnosis.kind.value,
        cause=diagnosis.cause,
        says=diagnosis.says,
        node=diagnosis.node,
        rank=diagnosis.rank,
        suspects=tuple(suspects),
        evidence=tuple(diagnosis.evidence[:20]),
        also=tuple(diagnosis.also),
        advice=diagnosis.advice,
        accused=tuple(accused),
        acquitted=tuple(acquitted),
    )


def find_diagnosis(events: Sequence[Event], attempt: str) -> Diagnosed | None:
    """Return the journalled diagnosis of an attempt, if there is one."""
    for event in reversed(events):
        if isinstance(event, Diagnosed | AttemptStarted) and event.attempt == attempt:
            # Earlier events belong to another attempt of this name: a killed controller reuses ids.
            return event if isinstance(event, Diagnosed) else None
    return None


def recall_diagnosis(event: Diagnosed) -> Diagnosis:
    """Read a diagnosis from its journal entry."""
    known = event.cause_kind in set(CauseKind)
    return Diagnosis(
        kind=CauseKind(event.cause_kind) if known else CauseKind.UNKNOWN,
        cause=event.cause,
        says=event.says,
        node=event.node,
        rank=event.rank,
        evidence=event.evidence,
        advice=event.advice,
        attempt=event.attempt,
    )


def explain_diagnosis(diagnosis: Diagnosis) -> Reason:
    """Return the diagnosis as a reason: `gpu: a GPU has fallen off the bus (node003, rank 5)`."""
    return Reason(
        kind=ReasonKind.DIAGNOSIS,
        attempt=diagnosis.attempt,
        cause_kind=diagnosis.kind.value,
        cause=diagnosis.cause,
        text=diagnosis.says,
        node=diagnosis.node,
        rank=diagnosis.rank,
    )
