"""`opsctl why`: what ended a task, on which node and rank, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opsctl.cli.output import json_option, optional_train, print_json, say
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt, diagnose_logs
from opsctl.diagnosis.exit_reasons import ExitReason, explain_by_slurm, explain_by_trainer
from opsctl.diagnosis.hang_cause import diagnose_hang
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import InputError, Unreachable
from opsctl.guard.attempt_record import read_start
from opsctl.guard.diagnose import STATE_BY_OUTCOME, load_attempt_logs, read_stop_request_text
from opsctl.guard.exit_evidence import gather_evidence
from opsctl.guard.finalize import is_row_of, load_past_jobs, read_end
from opsctl.guard.node_evidence import add_node_history
from opsctl.guard.outcome import Outcome
from opsctl.guard.stop_request import StopKind, read_stop_request
from opsctl.model import JobState
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import read_stop_reason

if TYPE_CHECKING:
    from opsctl.app import App


@click.command()
@optional_train
@click.option(
    "--task", type=click.IntRange(min=0), help="Of this array task, in its newest attempt; else of the newest."
)
@click.option(
    "--log", "logs", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Read this log, or all of a directory's, instead of TRAIN's; may be given again.",
)  # fmt: skip
@json_option
@click.pass_obj
def why(app: App, train: str | None, *, task: int | None, logs: tuple[Path, ...], as_json: bool) -> None:
    """Say what ended a task of TRAIN: the first cause and not its echo, where, when, the lines that prove it, and what
    to do.

    \b
    opsctl why tiny-gpt
    opsctl why tiny-gpt --task 3
    opsctl why --log main_log.txt
    """
    if bool(train) == bool(logs):
        raise click.UsageError("Name a TRAIN, or logs with --log, not both.")
    run = app.find(train) if train else None
    diagnosis = diagnose(app, run, task) if run else diagnose_logs(_files(logs))
    finalized = read_end(run.attempt(diagnosis.attempt)) if run else None
    done = finalized.done if finalized else ()
    if as_json:
        print_json({**asdict(diagnosis), "suspects": diagnosis.suspects, "done": done})
    else:
        say("\n".join(render_diagnosis(diagnosis, train or "", done)))


def _files(paths: tuple[Path, ...]) -> list[Path]:
    found = [each for path in paths for each in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [path for path in found if path.is_file()]


def diagnose(app: App, run: RunDir, task: int | None) -> Diagnosis:
    """Why the newest attempt that has ended, of this task or of all, ended. Raises InputError if there is none."""
    started = list(replay(app.journal(run).events()).started)
    mine = [attempt for attempt in started if task is None or run.attempt(attempt).task == task]
    over = [attempt for attempt in mine if _is_over(app, run.attempt(attempt))] if mine else []
    if not over:
        of = f"{run.name}: no attempt" + ("" if task is None else f" of task {task}")
        raise InputError(f"{of} has ended", hint=f"opsctl status {run.name}; opsctl stacks {run.name} where it hangs")
    attempt = over[-1]
    earlier = started[: started.index(attempt)]
    before = diagnose_attempt(run, _lived(app, run, earlier[-1], started)) if earlier else None
    ask = diagnose_hang if _hung(run.attempt(attempt)) else diagnose_attempt
    diagnosis = ask(run, _lived(app, run, attempt, started), before=before)
    return _with_past(app, run, run.attempt(attempt), _with_lost_node(run.attempt(attempt), diagnosis))


def _with_lost_node(attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """With the node that was down when the attempt was finalized, where its logs name none: Slurm forgets such
    states."""
    done = read_end(attempt)
    if diagnosis.node or done is None or len(done.suspects) != 1:
        return diagnosis
    return replace(diagnosis, node=done.suspects[0])


def _hung(attempt: Attempt) -> bool:
    done, stop_request = read_end(attempt), read_stop_request(attempt)
    return done.outcome is Outcome.HUNG if done else bool(stop_request and stop_request.reason is StopKind.HUNG)


def _with_past(app: App, run: RunDir, attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """With what health knows of the nodes, as far as it is known which they were and when it ended."""
    began, done = read_start(attempt), read_end(attempt)
    at = done.ended if done else gather_evidence(run, attempt, None)[1] or app.clock.now()
    allocated = began.nodes if began else ""
    return add_node_history(diagnosis, app.history, allocated, at=at, days=app.site.health.lemon_days)


def _lived(app: App, run: RunDir, attempt: str, started: list[str]) -> FinishedAttemptLogs:
    return load_attempt_logs(run, attempt, started, _said(app, run.attempt(attempt)))


def _is_over(app: App, attempt: Attempt) -> bool:
    """Settled, or its body has exited, or Slurm says so."""
    if read_end(attempt) or attempt.body_exit.exists():
        return True
    return _state(app, attempt).is_final


def _state(app: App, attempt: Attempt) -> JobState:
    """Slurm's word for an attempt's job, or UNKNOWN where it has none or does not answer."""
    if (done := read_end(attempt)) and (state := STATE_BY_OUTCOME.get(done.outcome)):
        return state
    try:
        rows = [*app.scheduler.jobs(), *load_past_jobs(app.scheduler, [attempt.array])]
    except Unreachable:
        return JobState.UNKNOWN
    return next(
        (row.state for row in rows if is_row_of(row, attempt) and row.restarts == attempt.restart), JobState.UNKNOWN
    )


def _said(app: App, attempt: Attempt) -> ExitReason | None:
    """What the trainer, the guard or Slurm say."""
    word = explain_by_trainer(read_stop_reason(attempt.stop_reason), read_stop_request_text(attempt))
    if (
        word is None
        and (done := read_end(attempt))
        and done.outcome.value in {"finished", "killed", "paused", "stopped"}
    ):
        kind = CauseKind.NONE if done.outcome.value == "finished" else CauseKind.SWITCH
        return ExitReason(kind=kind, says=done.why, is_final=True)
    return word or explain_by_slurm(_state(app, attempt))


def render_diagnosis(diagnosis: Diagnosis, train: str, done: Sequence[str] = ()) -> list[str]:
    """For people: what, where, when, the proof, what was done, what to do."""
    where = ", ".join(
        part
        for part in (
            f"node {diagnosis.node}" if diagnosis.node else "",
            f"rank {diagnosis.rank}" if diagnosis.rank is not None else "",
            f"GPU {diagnosis.gpu}" if diagnosis.gpu else "",
        )
        if part
    )
    kind = "" if diagnosis.kind is CauseKind.NONE else f"{diagnosis.kind.value}: "
    lines = [
        " ".join(part for part in (train, diagnosis.attempt) if part)
        + (": " if train or diagnosis.attempt else "")
        + kind
        + diagnosis.says
    ]
    rows = [("where", where), ("when", _when(diagnosis))]
    rows += [("proof", line) for line in diagnosis.evidence] + [("also", line) for line in diagnosis.also]
    rows += [("log", diagnosis.log), *(("done", each) for each in done), ("do", diagnosis.advice)]
    if train and diagnosis.suspects and not done:
        rows.append(("", f"opsctl release {train} --exclude {','.join(diagnosis.suspects)}"))
    last = ""
    for label, text in rows:
        if text:
            lines.append(f"  {label if label != last else '':<7}{text}")
            last = label
    return lines


def _when(diagnosis: Diagnosis) -> str:
    after = f"after iteration {diagnosis.iteration}" if diagnosis.iteration is not None else ""
    return ", ".join(part for part in (diagnosis.at, after) if part)
