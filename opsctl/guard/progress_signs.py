"""The progress of one attempt, from the signs that its trainer left. The only place where the guard reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from opsctl.checkpoints.scan import list_checkpoints_in
from opsctl.guard.attempt_record import Start
from opsctl.guard.end_record import AttemptProgress
from opsctl.guard.newest_checkpoint import NewestCheckpoint, find_newest, find_newest_logged, is_other_kind
from opsctl.state.files import is_regular
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.log_events import ProgressEventKind
from opsctl.telemetry.progress.signs import (
    MAX_LISTED_SAVES,
    LogSigns,
    find_directories,
    find_gap,
    read_log_signs,
)
from opsctl.telemetry.progress.train_settings import read_settings, read_step_pattern
from opsctl.trainer.contract import read_heartbeat

ONE_SAVE_NS = 60 * 10**9
"""Files that are written within this time belong to one save."""
OF_TRAINING = (ProgressEventKind.SAVING, ProgressEventKind.SAVED, ProgressEventKind.FINISHED)
"""Statements that only a training makes: others load a model as well, or announce steps that they never make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignsOfProgress(AttemptProgress):
    """The progress of one attempt, and whether there was any training."""

    shows_training: bool = False
    """Whether anything shows that the attempt trained: a step, an epoch, a checkpoint, or what the trainer says."""


def read_attempt_progress(
    run: RunDir, attempt: Attempt, start: Start | None, next_start: Start | None = None
) -> SignsOfProgress:
    """Return the progress of an attempt, up to the start of the next attempt if there is one.

    The checkpoints of the embedded trainer are certain, so that no log is read.
    """
    if start is None:
        return SignsOfProgress(new_checkpoint=False)
    newest = find_newest(run)
    mark = newest.mark if newest else -1
    if next_start:
        mark = min(mark, next_start.checkpoint)
    if is_regular(run.trainer_config):
        return SignsOfProgress(
            resume_step=start.checkpoint,
            highest_step=mark,
            new_checkpoint=mark > start.checkpoint,
            shows_training=True,
        )
    end = next_start.main_log if next_start else 0
    log = read_log_signs(run.main_log, start.main_log, read_step_pattern(run), end=end)
    since_ns = _read_start_ns(attempt)
    found = find_directories(run, read_settings(run), logged=log.saved_paths)
    directories = [directory.path for directory in found]
    begins_anew = log.first is not None and log.first.step <= max(1, find_gap(log))
    counts_anew = log.has_restarted or (begins_anew and log.resumes_from(directories))
    highest = _find_highest(run, attempt, log)
    saved_ns = _list_save_times(directories, since_ns) if counts_anew or highest is None else []
    if next_start:
        until_ns = _read_start_ns(run.attempt(next_start.attempt))
        saved_ns = [time for time in saved_ns if time < until_ns]
        is_new = next_start.checkpoint != start.checkpoint
    else:
        is_new = newest is not None and is_newer(newest, start.checkpoint, since_ns)
    is_rewritten = counts_anew and bool(saved_ns)
    is_saved = is_new or is_rewritten or find_newest_logged(run, log.saved_paths, since_ns) is not None
    is_unclear = bool(saved_ns) or not is_in_sight(newest, start.checkpoint)
    has_counted = highest is not None or log.highest_epoch is not None
    return SignsOfProgress(
        resume_step=None if log.first is None else log.first.step - 1,
        highest_step=highest,
        new_checkpoint=is_saved,
        counts_anew=counts_anew,
        resumed_from=log.resumes[0].text if log.resumes else "",
        save_gap_minutes=_find_save_gap(since_ns, saved_ns),
        has_unclear_saves=highest is None and not is_saved and is_unclear,
        resume_epoch=None if log.first_epoch is None else log.first_epoch - 1,
        highest_epoch=log.highest_epoch,
        shows_training=has_counted or is_saved or log.has(*OF_TRAINING) or log.resumes_from(directories),
    )


def is_newer(newest: NewestCheckpoint, mark: int, since_ns: int) -> bool:
    """Return whether the newest checkpoint is newer than that with `mark` at the start of the attempt.

    A mark is a step or a time. A trainer may begin with a file without a step, and go on with steps.
    """
    return newest.changed_ns > since_ns if is_other_kind(newest.mark, mark) else newest.mark > mark


def is_in_sight(newest: NewestCheckpoint | None, mark: int) -> bool:
    """Return whether the checkpoint with `mark` at the start of the attempt, or a newer one, is there and readable."""
    return newest is not None and newest.mark >= mark and not is_other_kind(newest.mark, mark)


def _list_save_times(directories: Sequence[Path], since_ns: int) -> list[int]:
    """Return when checkpoints were written since, the oldest first, perhaps under the names of earlier ones."""
    found = list_checkpoints_in(directories, MAX_LISTED_SAVES)
    times = {checkpoint.changed_ns for checkpoint in found if not checkpoint.is_partial}
    return sorted(time for time in times if time > since_ns > 0)


def _find_save_gap(since_ns: int, saved_ns: Sequence[int]) -> float | None:
    """Return the longest time between two checkpoints, in minutes. One save may write several files.

    Older checkpoints may be gone, so that the time from the start counts only if a single save is there.
    """
    if not saved_ns:
        return None
    gap_ns = max((after - before for before, after in pairwise(saved_ns)), default=0)
    return (gap_ns if gap_ns > ONE_SAVE_NS else saved_ns[-1] - since_ns) / 60e9


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
