"""The dossier of an ended attempt: all facts about its end, read once, from its files and Slurm's row of its job."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from opsctl.base.model import Job, JobState
from opsctl.base.nodesets import expand_if_list
from opsctl.base.tables import read_patterns
from opsctl.checkpoints.scan import MAX_STEP_DIGITS
from opsctl.checkpoints.trainer_command.read_command import CommandContent, list_options, read_command
from opsctl.checkpoints.trainer_command.shell import strip_comments
from opsctl.guard.attempt_record import Start, find_next_start, read_start
from opsctl.guard.end_record import Outcome, read_end
from opsctl.guard.newest_checkpoint import find_newest
from opsctl.guard.outcome import Evidence
from opsctl.guard.progress_signs import SignsOfProgress, read_attempt_progress
from opsctl.guard.stop_request import read_stop_request
from opsctl.settings.loader import OnExit0
from opsctl.state.events import NodesLost
from opsctl.state.files import MAX_SETTINGS_BYTES, read_bounded, read_number
from opsctl.state.journal import Journal, TrainHistory, replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.iteration_lines import last_iteration
from opsctl.telemetry.progress.last_lines import LastLines, find_usage, read_last_lines
from opsctl.telemetry.progress.last_lines import read_end as read_last
from opsctl.telemetry.progress.signs import LogSigns, find_gap, find_working_directory, read_log_signs
from opsctl.telemetry.progress.train_settings import read_settings, read_step_pattern
from opsctl.trainer.contract import read_stop_reason, read_time

LIMIT_TOLERANCE_S = 60.0
"""Slurm ends a job up to a minute after its limit; clocks of nodes differ by less."""
LIMIT_TOLERANCE_SHARE = 0.1
"""The tolerance of a short job, as a share of its time limit."""

NEAR_LIMIT_SHARE = 0.5
"""Share of the time limit after which a trainer that exits by itself may do so because of the limit."""
PATTERNS = read_patterns("guard/dossier.toml", "patterns")
TIME_VARIABLES = ("TRAIN_MINUTES_LEFT", "TRAIN_DEADLINE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dossier:
    """All facts about an ended attempt."""

    attempt: Attempt
    job: Job | None
    """Slurm's final row of the attempt, if known."""
    start: Start | None
    started: datetime
    ended: datetime
    progress: SignsOfProgress
    evidence: Evidence

    @property
    def nodes(self) -> str:
        """The nodes of the attempt, in Slurm's notation; empty if unknown."""
        if self.start:
            return self.start.nodes
        return self.job.nodes if self.job else ""

    @property
    def minutes(self) -> float:
        return (self.ended - self.started).total_seconds() / 60

    @property
    def limit_minutes(self) -> float | None:
        """The minutes from the start to the time limit; None if unknown."""
        deadline_s = read_time(self.attempt.deadline)
        return (deadline_s - self.start.at.timestamp()) / 60 if self.start and deadline_s else None


def read_dossier(journal: Journal, attempt: Attempt, job: Job | None, on_exit_0: OnExit0 | None = None) -> Dossier:
    """Read all facts about an ended attempt. `job` is Slurm's final row of this attempt."""
    run, history, now = journal.run, replay(journal.events()), journal.clock.now()
    start = read_start(attempt)
    next_start = find_next_start(run, attempt, list(history.started))
    progress = read_attempt_progress(run, attempt, start, next_start)
    has_counted = progress.highest_step is not None or progress.highest_epoch is not None
    is_idle = not has_counted and not progress.new_checkpoint
    is_idle_again = is_idle and _has_left_before(run, attempt, history)
    lost = _find_lost_nodes(journal, attempt, start, job)
    at = find_end(attempt, job)
    evidence = gather_evidence(
        run, attempt, job, on_exit_0=on_exit_0, is_idle_again=is_idle_again, next_start=next_start
    )
    return Dossier(
        attempt=attempt,
        job=job,
        start=start,
        started=start.at if start else history.started.get(attempt.name, at or now),
        ended=at or now,
        progress=progress,
        evidence=replace(evidence, is_idle=is_idle, lacks_signs=not progress.shows_training, lost_nodes=lost),
    )


def _find_lost_nodes(journal: Journal, attempt: Attempt, start: Start | None, job: Job | None) -> tuple[str, ...]:
    """Return the nodes that did not answer the guard, or that Slurm has taken out of the job."""
    remaining = expand_if_list(job.nodes) if job else ()
    if start and remaining:
        gone = tuple(node for node in expand_if_list(start.nodes) if node not in remaining)
        if gone:
            return gone
    noted = (event for event in journal.events() if isinstance(event, NodesLost))
    return next((expand_if_list(event.nodes) for event in noted if event.attempt == attempt.name), ())


def _has_left_before(run: RunDir, attempt: Attempt, history: TrainHistory) -> bool:
    """Whether the attempt before made steps or epochs, whose log is therefore readable, and exited with 0 by itself."""
    started = list(history.started)
    position = started.index(attempt.name) if attempt.name in started else len(started)
    previous = read_end(run.attempt(started[position - 1])) if position else None
    if previous is None or previous.outcome not in {Outcome.EXITED, Outcome.DEADLINE}:
        return False
    return previous.highest_step is not None or previous.highest_epoch is not None


def gather_evidence(
    run: RunDir,
    attempt: Attempt,
    job: Job | None,
    *,
    on_exit_0: OnExit0 | None = None,
    is_idle_again: bool = False,
    next_start: Start | None = None,
) -> Evidence:
    """Return how the attempt ended. `job` is Slurm's final row of this attempt.

    An attempt whose node died may be finalized late: the log after `next_start` is that of the next attempt.
    """
    stop, code = read_stop_reason(attempt.stop_reason), read_number(attempt.body_exit)
    end = find_end(attempt, job)
    deadline_s = read_time(attempt.deadline)
    start, pattern = read_start(attempt), read_step_pattern(run)
    log_end = next_start.main_log if next_start else None
    line = last_iteration(run.main_log, pattern) if log_end is None else None
    last_lines = read_last_lines(run.main_log, start.main_log, log_end, pattern=pattern) if start else LastLines()
    signs = read_log_signs(run.main_log, start.main_log, pattern, end=log_end or 0) if start else LogSigns()
    logged = find_decisive_line(signs)
    if logged and (line is None or logged.last != line.last or logged.step >= line.step):
        line = logged  # the last line of a log that is over is complete
    command = _read_body(run)
    options = _list_options(command)
    known_last = line.last if line else None
    if line and known_last is None:
        known_last = _find_reached_target(line.step, find_gap(signs), options)
        line = replace(line, step=known_last or line.step)
    return Evidence(
        stop=stop,
        request=read_stop_request(attempt),
        code=code,
        state=job.state if job else JobState.UNKNOWN,
        is_last_step=bool(line and known_last is not None and line.step >= known_last),
        has_steps_left=bool(line and known_last is not None and line.step < known_last),
        is_end_saved=not (last_lines.counts_in_epoch or signs.has_restarted) and _is_saved(run, known_last),
        has_finished_file=attempt.finished.exists(),
        was_signalled=(run.attempt_logs(attempt.name) / "signalled").exists(),
        cancelled_line=_find_cancelled_step(run, attempt, start, log_end) if start and code is not None else "",
        finished_line=last_lines.finished,
        unfinished_line=last_lines.unfinished,
        failed_line=last_lines.failed,
        epochs_left=last_lines.epochs_left,
        usage_line=find_usage(run.main_log, start.main_log, log_end) if start else "",
        on_exit_0=on_exit_0,
        is_near_limit=_is_near_limit(start, end, deadline_s),
        limits_itself=_limits_itself(command, options),
        is_idle_again=is_idle_again,
        at_its_limit=_is_at_limit(start, end, deadline_s),
    )


def find_decisive_line(log: LogSigns) -> Iteration | None:
    """Return the newest step of the longest series that is not at its end; the newest step if all are."""
    open_series = [step for step in log.series if step.last is not None and step.step < step.last]
    return max(open_series, key=lambda step: step.last or 0, default=log.steps[-1] if log.steps else None)


def _is_saved(run: RunDir, last: int | None) -> bool:
    """Whether the newest checkpoint is that of the last step. Some trainers count steps from 0."""
    newest = find_newest(run) if last is not None else None
    return newest is not None and newest.step is not None and last is not None and 0 <= last - newest.step <= 1


def has_damaged_stop_reason(attempt: Attempt) -> bool:
    """Whether the trainer has left a reason for its stop that cannot be read."""
    return os.path.lexists(attempt.stop_reason) and read_stop_reason(attempt.stop_reason) is None


def find_end(attempt: Attempt, job: Job | None) -> datetime | None:
    """Return when the attempt ended, by its body, its trainer or Slurm; None if unknown."""
    if (exited := _read_mtime(attempt.body_exit)) is not None:
        return exited
    if stop := read_stop_reason(attempt.stop_reason):
        return datetime.fromtimestamp(stop.at, UTC)
    return job.end if job else None


def _is_near_limit(start: Start | None, end: datetime | None, deadline_s: float | None) -> bool:
    if start is None or end is None or not deadline_s:
        return False
    begin_s = start.at.timestamp()
    return end.timestamp() - begin_s > NEAR_LIMIT_SHARE * (deadline_s - begin_s)


def _is_at_limit(start: Start | None, end: datetime | None, deadline_s: float | None) -> bool:
    if end is None or not deadline_s:
        return False
    limit_s = deadline_s - start.at.timestamp() if start else LIMIT_TOLERANCE_S / LIMIT_TOLERANCE_SHARE
    return end.timestamp() > deadline_s - min(LIMIT_TOLERANCE_S, LIMIT_TOLERANCE_SHARE * limit_s)


def _read_body(run: RunDir) -> CommandContent:
    """Return what the body says, which holds the rendered command and may have been edited since the launch."""
    try:
        body = read_bounded(run.body, MAX_SETTINGS_BYTES).decode(errors="replace")
    except OSError:
        body = ""
    settings = read_settings(run)
    directory = find_working_directory(run, settings) if settings else run.path
    mounts = settings.container.sources if settings and settings.container else None
    environment = settings.environment if settings else {}
    content = read_command([body], environment, directory, run.checkpoints, mounts)
    return replace(content, scripts={**content.scripts, run.body.name: body})


def _list_options(command: CommandContent) -> list[tuple[str, str]]:
    """Return the options of the body, its scripts and its configuration files, each with its first value."""
    given = chain.from_iterable(list_options(words) for words in command.parts)
    options = [(name, values[0] if values else "") for name, values in given]
    set_in_files = chain.from_iterable(values.items() for values in command.files.values())
    return options + [
        (key.rpartition(".")[2], values[0])
        for key, values in set_in_files
        if values and not PATTERNS["unset"].fullmatch(values[0])
    ]


def _limits_itself(command: CommandContent, options: Sequence[tuple[str, str]]) -> bool:
    code = "\n".join(map(strip_comments, command.scripts.values()))
    has_option = any(PATTERNS["time_option"].match(name) for name, _ in options)
    return has_option or any(variable in code for variable in TIME_VARIABLES)


def _find_reached_target(step: int, gap: float, options: Sequence[tuple[str, str]]) -> int | None:
    """Return the last step that an option names, if the log got there: the last line may be that of a step before."""
    values = {
        value
        for name, value in options
        if PATTERNS["steps_option"].fullmatch(name.rpartition(".")[2]) and value.isdecimal()
    }
    targets = [int(value) for value in values if len(value) <= MAX_STEP_DIGITS]
    return targets[0] if len(targets) == 1 and abs(targets[0] - step) < max(gap, 2) else None


def _find_cancelled_step(run: RunDir, attempt: Attempt, start: Start, log_end: int | None) -> str:
    """Return what Slurm wrote about the cancelled step; empty if a rank failed before: then srun ends the others."""
    logs = run.attempt_logs(attempt.name)
    signalled, first_exit = _read_mtime(logs / "signalled"), _read_mtime(logs / "first-exit")
    if first_exit and (signalled is None or first_exit < signalled):
        return ""
    for line in read_last(run.main_log, start.main_log, log_end):
        if PATTERNS["rank_failed"].match(line):
            return ""
        if cancelled := PATTERNS["step_cancelled"].search(line):
            return cancelled[0].strip(" *")
    return ""


def _read_mtime(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return None
