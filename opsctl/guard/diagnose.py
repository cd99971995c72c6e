"""Why an attempt ended, asked once, in bounded time. Whatever goes wrong in here makes it an end that nobody can
tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.exit_reasons import ExitReason, explain_by_slurm, explain_by_trainer
from opsctl.diagnosis.hang_cause import diagnose_hang
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import ConfigError
from opsctl.guard import attempt_record
from opsctl.guard.outcome import Outcome
from opsctl.guard.stop_request import read_stop_request
from opsctl.host.isolation import Failed, Isolation
from opsctl.model import JobState
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.journal import Event, EventKind, Journal, replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import read_stop_reason

STATE_BY_OUTCOME = {
    Outcome.TIMED_OUT: JobState.TIMEOUT,
    Outcome.NODE_FAILED: JobState.NODE_FAIL,
    Outcome.CANCELLED: JobState.CANCELLED,
    Outcome.PREEMPTED: JobState.PREEMPTED,
}
"""What Slurm said of an attempt, as its outcome has kept it."""


def diagnose(
    journal: Journal, attempt: Attempt, outcome: Outcome, *, seconds: float, also: Callable[[Diagnosis], Diagnosis]
) -> Diagnosis:
    """Why `attempt` ended; `also` adds what others know of it. Raises nothing, and takes so many seconds at most."""
    ask = partial(_diagnose, journal, attempt, outcome, also)
    answer = Isolation[str, Diagnosis](journal.clock, seconds).run({attempt.name: ask})[attempt.name]
    if isinstance(answer, Failed):
        says = f"why it ended could not be found out: {answer.why}"
        return Diagnosis(
            kind=CauseKind.UNKNOWN, cause="nothing", says=says, attempt=attempt.name, evidence=answer.traceback
        )
    return answer


def _diagnose(
    journal: Journal, attempt: Attempt, outcome: Outcome, also: Callable[[Diagnosis], Diagnosis]
) -> Diagnosis:
    run, events = journal.run, journal.events()
    started = list(replay(events).started)
    position = started.index(attempt.name) if attempt.name in started else len(started)
    before = find_diagnosis(events, started[position - 1]) if position else None
    exit_reason = explain_by_trainer(read_stop_reason(attempt.stop_reason), read_stop_request_text(attempt))
    exit_reason = exit_reason or explain_by_slurm(STATE_BY_OUTCOME.get(outcome, JobState.UNKNOWN))
    ask = diagnose_hang if outcome is Outcome.HUNG else diagnose_attempt
    return also(
        ask(
            run,
            load_attempt_logs(run, attempt.name, started, exit_reason),
            before=recall_diagnosis(before) if before else None,
        )
    )


def read_stop_request_text(attempt: Attempt) -> str:
    """Why the guard asked it to stop, if it did."""
    stop_request = read_stop_request(attempt)
    return stop_request.why if stop_request else ""


def load_attempt_logs(
    run: RunDir, name: str, started: Sequence[str], exit_reason: ExitReason | None
) -> FinishedAttemptLogs:
    """What is known of an attempt from outside its logs; `started` are all attempts in their order."""
    later = started[started.index(name) + 1 :] if name in started else ()
    began = attempt_record.read_start(run.attempt(name))
    following = attempt_record.read_start(run.attempt(later[0])) if later else None
    return FinishedAttemptLogs(
        attempt=name,
        begin=began.main_log if began else 0,
        end=(following.main_log or None) if following else None,
        said=exit_reason,
        ranks=_ranks(run),
    )


def _ranks(run: RunDir) -> int | None:
    try:
        return parse(TrainSettings, read_toml(run.config), str(run.config)).world_size
    except ConfigError:
        return None


def to_event(diagnosis: Diagnosis, suspects: Sequence[str]) -> dict[str, object]:
    """What the journal keeps of it."""
    return {
        "attempt": diagnosis.attempt,
        "class": diagnosis.kind.value,
        "cause": diagnosis.cause,
        "says": diagnosis.says,
        "node": diagnosis.node,
        "rank": diagnosis.rank,
        "suspects": list(suspects),
        "evidence": list(diagnosis.evidence[:20]),
        "also": list(diagnosis.also),
        "advice": diagnosis.advice,
    }


def find_diagnosis(events: Sequence[Event], attempt: str) -> Event | None:
    """What the journal says of why an attempt ended, if that was asked already."""
    for event in reversed(events):
        if event.data.get("attempt") == attempt and event.kind in {EventKind.DIAGNOSED, EventKind.ATTEMPT_STARTED}:
            # Before it began, the name was another attempt's: a controller that was killed uses ids again.
            return event if event.kind is EventKind.DIAGNOSED else None
    return None


def recall_diagnosis(event: Event) -> Diagnosis:
    """What the journal has kept of a diagnosis."""
    known = event.data["class"] in set(CauseKind)
    return Diagnosis(
        kind=CauseKind(event.data["class"]) if known else CauseKind.UNKNOWN,
        cause=event.data["cause"],
        says=event.data["says"],
        node=event.data["node"],
        rank=event.data["rank"],
        evidence=tuple(event.data["evidence"]),
        advice=event.data["advice"],
        attempt=event.data["attempt"],
    )


def describe_diagnosis(diagnosis: Diagnosis) -> str:
    """In a few words: `gpu: a GPU has fallen off the bus (node003, rank 5)`."""
    rank = f"rank {diagnosis.rank}" if diagnosis.rank is not None else ""
    where = ", ".join(each for each in (diagnosis.node, rank) if each)
    return f"{diagnosis.kind.value}: {diagnosis.says}" + (f" ({where})" if where else "")
