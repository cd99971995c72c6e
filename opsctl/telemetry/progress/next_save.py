"""Predict the next checkpoint: from the embedded trainer's settings, or from a foreign trainer's checkpoints."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from opsctl.checkpoints.scan import list_checkpoints_in
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_directories
from opsctl.telemetry.progress.train_settings import read_settings
from opsctl.trainer.manifest import COMPLETE, Checkpoint, list_checkpoints

MAX_CHECKPOINTS = 64
"""Checkpoints of a directory that are looked at, the newest."""
MAX_INTERVALS = 5
"""The save interval is the largest of the newest few. A save at an exit splits an interval into two smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSave:
    """Steps of the newest and of the next checkpoint; None if unknown."""

    newest: int | None = None
    next: int | None = None
    at: datetime | None = None
    """When the newest checkpoint was written, by the file system's clock; None if it lies elsewhere."""


def predict_next_save(run: RunDir, step: int, last_step: int | None, *, newest: int | None = None) -> NextSave:
    """Return the checkpoints around `step`. `newest` overrides the newest checkpoint in the directory."""
    is_embedded = is_regular(run.trainer_config)
    times = _find_checkpoints(run, is_embedded=is_embedded)
    steps = sorted(times)
    every = _configured_interval(run) if is_embedded else _observed_interval(steps)
    due = last_step if is_embedded else None
    newest = newest if newest is not None else max(steps, default=None)
    if every:
        due = (step // every + 1) * every
        due += every * (due == newest)  # the checkpoint may be there before its log line
    if due is not None and last_step is not None:
        due = min(due, last_step)
    return NextSave(
        newest=newest,
        next=due if due is not None and due > step else None,
        at=times.get(newest) if newest is not None else None,
    )


def _find_checkpoints(run: RunDir, *, is_embedded: bool) -> dict[int, datetime | None]:
    """Return when the checkpoints of any trainer were written, by their steps. Partial ones are left out."""
    if is_embedded:
        return {checkpoint.step: _written(checkpoint.path) for checkpoint in _list_embedded(run)}
    times: dict[int, datetime | None] = {}
    settings = read_settings(run)
    directories = [directory.path for directory in find_directories(run, settings)] if settings else []
    for checkpoint in list_checkpoints_in(directories or [run.checkpoints], MAX_CHECKPOINTS):
        if checkpoint.step is not None and not checkpoint.is_partial:
            times[checkpoint.step] = datetime.fromtimestamp(checkpoint.changed_ns / 1e9, UTC)
    return times


def _list_embedded(run: RunDir) -> list[Checkpoint]:
    try:
        return list_checkpoints(run.checkpoints)
    except OSError:
        return []


def _written(checkpoint: Path) -> datetime | None:
    """Return when a checkpoint of the embedded trainer was completed."""
    for path in (checkpoint / COMPLETE, checkpoint):
        with contextlib.suppress(OSError, ValueError, OverflowError):
            return datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    return None


def _observed_interval(steps: list[int]) -> int | None:
    return max((after - before for before, after in pairwise(steps[-MAX_INTERVALS - 1 :])), default=None)


def _configured_interval(run: RunDir) -> int | None:
    """Return `checkpoint.every` of the frozen settings; None if the trainer saves only at its end."""
    try:
        every: Any = read_json(run.trainer_config, MAX_SETTINGS_BYTES)["checkpoint"]["every"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return every if type(every) is int and every > 0 else None
