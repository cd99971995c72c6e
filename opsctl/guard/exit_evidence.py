"""What is known of how an attempt ended: files that it left, and Slurm's word."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from opsctl.guard.outcome import Evidence
from opsctl.guard.stop_request import read_stop_request
from opsctl.model import Job, JobState
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.iteration_lines import last_iteration
from opsctl.trainer.contract import StopReason, read_stop_reason, read_time

NEAR = 60.0
"""Seconds. Slurm ends a job up to a minute after its limit; clocks of nodes differ by less."""


def gather_evidence(run: RunDir, attempt: Attempt, job: Job | None) -> tuple[Evidence, datetime | None]:
    """All there is, and when the attempt ended, if that is known. `job` is Slurm's row of this attempt once it was
    over."""
    stop, code = read_stop_reason(attempt.stop_reason), _read_code(attempt.body_exit)
    end = _end(attempt, stop, job)
    limit = read_time(attempt.deadline)
    evidence = Evidence(
        stop=stop,
        request=read_stop_request(attempt),
        code=code,
        state=job.state if job else JobState.UNKNOWN,
        is_last_step=_is_last_step(run),
        at_its_limit=bool(limit and end and end.timestamp() > limit - NEAR),
    )
    return evidence, end


def _end(attempt: Attempt, stop: StopReason | None, job: Job | None) -> datetime | None:
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
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_mtime(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
