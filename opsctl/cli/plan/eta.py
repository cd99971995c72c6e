"""Estimate when a running train will finish, from its log and journal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from opsctl.base.errors import InputError, OpsctlError
from opsctl.calc.time_left import time_left
from opsctl.state.journal import replay
from opsctl.telemetry.progress.iteration_lines import Iteration, recent_iterations
from opsctl.telemetry.progress.step_pace import measure_waits, median_step_s

if TYPE_CHECKING:
    from opsctl.app import App

RECENT_ITERATIONS = 200


def log_step_s(log: Path) -> float:
    """Return the median step of a log's newest iterations."""
    step_s = median_step_s(_read_recent(log))
    if step_s is None:
        raise OpsctlError(f"{log}: no iteration line has a step time")
    return step_s


def _read_recent(log: Path) -> Sequence[Iteration]:
    if not log.is_file():
        raise InputError(f"{log}: {'no file' if log.exists() else 'no such file'}")
    return recent_iterations(log, RECENT_ITERATIONS)


def eta_of(
    app: App,
    *,
    train: str | None,
    log: Path | None,
    task_h: float | None,
    start_up_min: float,
    waits_h: Sequence[float],
) -> dict[str, Any]:
    """Return the time left in seconds, from the newest iterations of a log and the queue waits so far."""
    waits = [hours * 3600 for hours in waits_h]
    if train:
        run = app.find(train)
        log = run.main_log
        waits = waits or measure_waits(replay(app.journal(run).events()))
    assert log is not None
    recent = _read_recent(log)
    step_s = median_step_s(recent)
    if not recent or step_s is None or not recent[-1].last:
        raise OpsctlError(f"{log}: no iteration line has a step time and the last step")
    newest, last = recent[-1], recent[-1].last
    left = time_left(
        steps=max(0, last - newest.step),
        step_s=step_s,
        attempt_s=math.inf if task_h is None else task_h * 3600,
        start_up_s=start_up_min * 60,
        waits_s=waits,
    )
    return {
        "step": newest.step,
        "last_step": last,
        "step_s": step_s,
        "batch": newest.global_batch,
        "training_left": left.training,
        "tasks_to_come": left.attempts,
        "mean_wait": fmean(waits) if waits else None,
        "likely": left.likely,
        "earliest": left.early,
        "latest": left.late,
    }
