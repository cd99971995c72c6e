"""The progress of one attempt, from the signs that its trainer left. The only place where the guard reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.guard.attempt_record import Start, read_start
from opsctl.guard.newest_checkpoint import find_newest, find_newest_logged
from opsctl.state.files import is_regular
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.signs import LogSigns, read_log_signs
from opsctl.telemetry.progress.train_settings import read_step_pattern
from opsctl.trainer.contract import read_heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """The progress of one attempt; None for unknown steps."""

    resume_step: int | None = None
    """The step after which the attempt went on."""
    highest_step: int | None = None
    new_checkpoint: bool = False
    """Whether a new checkpoint appeared in any directory that settings, command or log name."""


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
    is_new = mark > start.checkpoint or find_newest_logged(run, log.saved_paths, since_ns) is not None
    return AttemptProgress(
        resume_step=None if log.first is None else log.first.step - 1,
        highest_step=_find_highest(run, attempt, log),
        new_checkpoint=is_new,
    )


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
