"""When the next checkpoint is due: as the embedded trainer is told, or as a foreign one has done so far."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from opsctl.state.run_dir import RunDir
from opsctl.trainer.manifest import COMPLETE

_STEP = re.compile(r"(?:step-|global_step_?|iter_|checkpoint-)0*(\d{1,15})", re.ASCII)
"""Names of checkpoints: this trainer's, DeepSpeed's, Megatron's, Hugging Face's."""
REMEMBERED = 5
"""The number of steps between two is the largest of the newest few: a save at an exit only makes two of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSave:
    """Steps of the newest checkpoint and of the next; None for what is not known."""

    newest: int | None = None
    next: int | None = None
    at: datetime | None = None
    """When the newest was written, by the file system's clock; None where it lies elsewhere."""


def predict_next_save(run: RunDir, step: int, last_step: int | None, *, newest: int | None = None) -> NextSave:
    """What is known at `step`; `newest` is the newest checkpoint, if somebody knows better than the directory's names
    tell."""
    paths, is_embedded = _named(run), run.trainer_config.exists()
    named = sorted(paths)
    every = _every(run) if is_embedded else _learnt(named)
    due = (step // every + 1) * every if every else last_step if is_embedded else None
    if due is not None and last_step is not None:
        due = min(due, last_step)
    newest = newest if newest is not None else max(named, default=None)
    return NextSave(
        newest=newest,
        next=due if due is not None and due > step else None,
        at=_written(paths[newest]) if newest in paths else None,
    )


def _named(run: RunDir) -> dict[int, Path]:
    """A foreign trainer's checkpoints and this one's, by the steps in their names."""
    try:
        paths = list(run.checkpoints.iterdir())
    except OSError:
        return {}
    return {int(match[1]): path for path in paths if (match := _STEP.fullmatch(path.name))}


def _written(checkpoint: Path) -> datetime | None:
    """Of ours, when it was complete: a note beside its files changes the directory later."""
    for path in (checkpoint / COMPLETE, checkpoint):
        with contextlib.suppress(OSError):
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return None


def _learnt(steps: list[int]) -> int | None:
    return max((after - before for before, after in pairwise(steps[-REMEMBERED - 1 :])), default=None)


def _every(run: RunDir) -> int | None:
    """`checkpoint.every` of the settings as they were frozen; None where the trainer saves only at its end."""
    try:
        given: Any = json.loads(run.trainer_config.read_text())["checkpoint"]["every"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return given if isinstance(given, int) and given > 0 else None
