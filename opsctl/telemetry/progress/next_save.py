"""Predict the next checkpoint: from the embedded trainer's settings, or from a foreign trainer's checkpoints."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, list_names, read_json
from opsctl.state.run_dir import RunDir
from opsctl.trainer.manifest import COMPLETE

_STEP = re.compile(r"(?:step-|global_step_?|iter_|checkpoint-)0*(\d{1,15})", re.ASCII)
"""Names of checkpoints: this trainer's, DeepSpeed's, Megatron's, Hugging Face's."""
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
    paths, is_embedded = _find_checkpoints(run), is_regular(run.trainer_config)
    steps = sorted(paths)
    every = _configured_interval(run) if is_embedded else _observed_interval(steps)
    due = last_step if is_embedded else None
    if every:
        due = (step // every + 1) * every
    if due is not None and last_step is not None:
        due = min(due, last_step)
    newest = newest if newest is not None else max(steps, default=None)
    return NextSave(
        newest=newest,
        next=due if due is not None and due > step else None,
        at=_written(paths[newest]) if newest in paths else None,
    )


def _find_checkpoints(run: RunDir) -> dict[int, Path]:
    """Return the checkpoints of any trainer by the steps in their names."""
    try:
        names = list_names(run.checkpoints)
    except OSError:
        return {}
    return {int(match[1]): run.checkpoints / name for name in names if (match := _STEP.fullmatch(name))}


def _written(checkpoint: Path) -> datetime | None:
    """Return when a checkpoint was written. An embedded checkpoint has a file with the time of its completion."""
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
