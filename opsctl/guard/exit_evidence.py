"""Evidence of how an attempt ended: the files that the attempt left, and Slurm's state of its job."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from opsctl.guard.outcome import Evidence
from opsctl.guard.stop_request import read_stop_request
from opsctl.model import Job, JobState
from opsctl.state.files import MAX_NUMBER_BYTES, read_text
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.iteration_lines import last_iteration
from opsctl.trainer.contract import StopReason, read_stop_reason, read_time

LIMIT_TOLERANCE_S = 60.0
"""Slurm ends a job up to a minute after its limit; clocks of nodes differ by less."""


def gather_evidence(run: RunDir, attempt: Attempt, job: Job | None) -> tuple[Evidence, datetime | None]:
    """Return the evidence and the attempt's end, None if unknown. `job` is Slurm's final row of this attempt."""
    stop, code = read_stop_reason(attempt.stop_reason), _read_code(attempt.body_exit)
    end = _find_end(attempt, stop, job)
    deadline_s = read_time(attempt.deadline)
    evidence = Evidence(
        stop=stop,
        request=read_stop_request(attempt),
        code=code,
        state=job.state if job else JobState.UNKNOWN,
        is_last_step=_is_last_step(run),
        at_its_limit=bool(deadline_s and end and end.timestamp() > deadline_s - LIMIT_TOLERANCE_S),
    )
    return evidence, end


def _find_end(attempt: Attempt, stop: StopReason | None, job: Job | None) -> datetime | None:
    if (exited := _read_mtime(attempt.body_exit)) is not None:
        return exited
    if stop is not None:
        return datetime.fromtimestamp(stop.at, UTC)
    return job.end if job else None


def _is_last_step(run: RunDir) -> bool:
    line = last_iteration(run.main_log)
    return line is not None and line.last is not None and line.step >= line.last


def _read_code(path: Path) -> int | None:
    try:
        return int(read_text(path, MAX_NUMBER_BYTES))
    except (OSError, ValueError):
        return None


def _read_mtime(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
