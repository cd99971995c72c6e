"""The progress of one attempt, from the signs that its trainer left. The only place where the guard reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.checkpoints.scan import list_found
from opsctl.guard.attempt_record import Start, read_start
from opsctl.guard.newest_checkpoint import NewestCheckpoint, find_newest, find_newest_logged, is_other_kind
from opsctl.state.files import is_regular
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.signs import (
    MAX_LISTED_SAVES,
    LogSigns,
    find_directories,
    find_gap,
    read_log_signs,
)
from opsctl.telemetry.progress.train_settings import read_settings, read_step_pattern
from opsctl.trainer.contract import read_heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """The progress of one attempt; None for unknown steps."""

    resume_step: int | None = None
    """The step after which the attempt went on."""
    highest_step: int | None = None
    new_checkpoint: bool = False
    """Whether a new checkpoint appeared in any directory that settings, command or log name."""
    counts_anew: bool = False
    """Whether the trainer counts its steps from the beginning though it goes on: the steps show no progress."""
    resumed_from: str = ""
    """What the trainer says about the checkpoint from which it goes on."""


def read_attempt_progress(
    run: RunDir, attempt: Attempt, started: Sequence[str], start: Start | None
) -> AttemptProgress:
    """Return the progress of an attempt. `started` lists all attempts in the order of their starts.

    The checkpoints of the embedded trainer are certain, so that no log is read.
    """
    if start is None:
        return AttemptProgress()
    newest = find_newest(run)
    mark = newest.mark if newest else -1
    if is_regular(run.trainer_config):
        return AttemptProgress(resume_step=start.checkpoint, highest_step=mark, new_checkpoint=mark > start.checkpoint)
    later = started[started.index(attempt.name) + 1 :] if attempt.name in started else ()
    next_start = next(filter(None, (read_start(run.attempt(name)) for name in later)), None)
    end = next_start.main_log if next_start else 0
    log = read_log_signs(run.main_log, start.main_log, read_step_pattern(run), end=end)
    since_ns = _read_start_ns(attempt)
    settings = read_settings(run)
    found = find_directories(run, settings, logged=log.saved_paths) if settings else []
    directories = [directory.path for directory in found]
    counts_anew = log.has_restarted or (_begins_anew(log) and log.resumes_from(directories))
    is_new = newest is not None and is_newer(newest, start.checkpoint, since_ns)
    is_rewritten = counts_anew and _has_rewritten(directories, since_ns)
    return AttemptProgress(
        resume_step=None if log.first is None else log.first.step - 1,
        highest_step=_find_highest(run, attempt, log),
        new_checkpoint=is_new or is_rewritten or find_newest_logged(run, log.saved_paths, since_ns) is not None,
        counts_anew=counts_anew,
        resumed_from=log.resumes[0].text if log.resumes else "",
    )


def is_newer(newest: NewestCheckpoint, mark: int, since_ns: int) -> bool:
    """Return whether the newest checkpoint is newer than that with `mark` at the start of the attempt.

    A mark is a step or a time. A trainer may begin with a file without a step, and go on with steps.
    """
    return newest.changed_ns > since_ns if is_other_kind(newest.mark, mark) else newest.mark > mark


def _has_rewritten(directories: Sequence[Path], since_ns: int) -> bool:
    """Whether a checkpoint was written since, perhaps under the name of an earlier one."""
    for directory in directories:
        found = list_found(directory, MAX_LISTED_SAVES)
        if any(checkpoint.changed_ns > since_ns > 0 for checkpoint in found if not checkpoint.is_partial):
            return True
    return False


def _begins_anew(log: LogSigns) -> bool:
    """Whether the first step is the first of a training, within the steps from line to line."""
    return log.first is not None and log.first.step <= max(1, find_gap(log))


def _find_highest(run: RunDir, attempt: Attempt, log: LogSigns) -> int | None:
    heartbeat = read_heartbeat(run.heartbeat / "train.json")
    steps = [] if log.highest is None else [log.highest]
    if heartbeat and heartbeat.attempt == attempt.name and type(heartbeat.step) is int:
        steps.append(heartbeat.step)
    return max(steps, default=None)


def _read_start_ns(attempt: Attempt) -> int:
    """Return when start.json was written, by the file system's clock."""
    try:
        return attempt.start.stat().st_mtime_ns
    except OSError:
        return 0
