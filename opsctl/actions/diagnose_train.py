"""The diagnosis of an ended attempt of a train."""

from dataclasses import replace

from opsctl.app import App
from opsctl.base.errors import InputError, Unreachable
from opsctl.base.model import JobState
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.exit_reasons import ExitReason, explain_by_outcome, explain_by_slurm, explain_by_trainer
from opsctl.diagnosis.hang_cause import diagnose_hang
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.attempt_record import read_start
from opsctl.guard.cause import STATE_BY_OUTCOME, load_attempt_logs, read_stop_request_text
from opsctl.guard.dossier import find_end
from opsctl.guard.end_record import Outcome, read_end
from opsctl.guard.node_evidence import add_node_history
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.guard.unfinalized import is_row_of, load_past_jobs
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import read_stop_reason

_KINDS = {
    Outcome.FINISHED: CauseKind.NONE,
    Outcome.KILLED: CauseKind.SWITCH,
    Outcome.PAUSED: CauseKind.SWITCH,
    Outcome.STOPPED: CauseKind.SWITCH,
    Outcome.IDLE: CauseKind.CONFIG,
}
"""Causes of the outcomes that the guard explains."""


def diagnose_train(app: App, run: RunDir, task: int | None) -> Diagnosis:
    """Diagnose the most recent ended attempt, of `task` or of any task. Raises InputError if no attempt has ended."""
    started = replay(app.journal(run).events()).attempts
    attempts = [attempt for attempt in started if task is None or run.attempt(attempt).task == task]
    ended = [attempt for attempt in attempts if _is_over(app, run.attempt(attempt))] if attempts else []
    if not ended:
        of = f"{run.name}: no attempt" + ("" if task is None else f" of task {task}")
        raise InputError(f"{of} has ended", hint=f"opsctl status {run.name}; if a task hangs: opsctl stacks {run.name}")
    attempt = ended[-1]
    earlier = started[: started.index(attempt)]
    before = diagnose_attempt(run, _load_logs(app, run, earlier[-1], started)) if earlier else None
    diagnose_ended = diagnose_hang if _is_hung(run.attempt(attempt)) else diagnose_attempt
    diagnosis = diagnose_ended(run, _load_logs(app, run, attempt, started), before=before)
    return _with_past(app, run.attempt(attempt), _with_lost_node(run.attempt(attempt), diagnosis))


def _with_lost_node(attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """Add the node that was down when the attempt was finalized, unless the logs name a node.

    Slurm does not remember such states.
    """
    done = read_end(attempt)
    if diagnosis.node or done is None or len(done.suspects) != 1:
        return diagnosis
    return replace(diagnosis, node=done.suspects[0])


def _is_hung(attempt: Attempt) -> bool:
    done, stop_request = read_end(attempt), read_stop_request(attempt)
    return done.outcome is Outcome.HUNG if done else bool(stop_request and stop_request.reason is StopKind.HUNG)


def _with_past(app: App, attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """Add the health history of the nodes of the attempt."""
    began, done = read_start(attempt), read_end(attempt)
    at = done.ended if done else find_end(attempt, None) or app.clock.now()
    allocated = began.nodes if began else ""
    return add_node_history(diagnosis, app.history, allocated, at=at, days=app.site.health.flaky_days)


def _load_logs(app: App, run: RunDir, attempt: str, started: list[str]) -> FinishedAttemptLogs:
    return load_attempt_logs(run, attempt, started, _find_exit_reason(app, run.attempt(attempt)))


def _is_over(app: App, attempt: Attempt) -> bool:
    """Return whether the attempt is finalized, its body has exited, or Slurm reports the job as ended."""
    if read_end(attempt) or attempt.body_exit.exists():
        return True
    return _state(app, attempt).is_final


def _state(app: App, attempt: Attempt) -> JobState:
    """Return the state of the job of an attempt; UNKNOWN if Slurm has no record or does not answer."""
    if (done := read_end(attempt)) and (state := STATE_BY_OUTCOME.get(done.outcome)):
        return state
    try:
        rows = [*app.slurm.jobs(), *load_past_jobs(app.slurm, [attempt.array])]
    except Unreachable:
        return JobState.UNKNOWN
    if attempt.has_successor:
        return JobState.UNKNOWN
    return next((row.state for row in rows if is_row_of(row, attempt)), JobState.UNKNOWN)


def _find_exit_reason(app: App, attempt: Attempt) -> ExitReason | None:
    """Return the reason that the trainer, the guard or Slurm gives for the exit."""
    done, stop = read_end(attempt), read_stop_reason(attempt.stop_reason)
    lost_node = done is not None and done.outcome is Outcome.NODE_FAILED
    reason = explain_by_trainer(stop, read_stop_request_text(attempt), lost_node=lost_node)
    if reason is None and done and done.outcome in _KINDS:
        return ExitReason(kind=_KINDS[done.outcome], says=done.why, is_final=True)
    planned = explain_by_outcome(done.outcome) if done else None
    return reason or planned or explain_by_slurm(_state(app, attempt))
