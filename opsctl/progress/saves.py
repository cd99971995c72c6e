"""When the next checkpoint is due: as the embedded trainer is told, or as a foreign one has done so far."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from opsctl.rundir import RunDir

_STEP = re.compile(r"(?:step-|global_step_?|iter_|checkpoint-)0*(\d{1,15})", re.ASCII)
"""Names of checkpoints: this trainer's, DeepSpeed's, Megatron's, Hugging Face's."""
REMEMBERED = 5
"""The number of steps between two is the largest of the newest few: a save at an exit only makes two of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Steps of the newest checkpoint and of the next; None for what is not known."""

    newest: int | None = None
    next: int | None = None


def saves(run: RunDir, step: int, last_step: int | None, *, newest: int | None = None) -> Saves:
    """What is known at `step`; `newest` is the newest checkpoint, if somebody knows better than the directory's names
    tell."""
    named, is_embedded = _named(run), run.trainer_config.exists()
    every = _every(run) if is_embedded else _learnt(named)
    due = (step // every + 1) * every if every else last_step if is_embedded else None
    if due is not None and last_step is not None:
        due = min(due, last_step)
    return Saves(
        newest=newest if newest is not None else max(named, default=None),
        next=due if due is not None and due > step else None,
    )


def _named(run: RunDir) -> list[int]:
    """Steps in the names of a foreign trainer's checkpoints and of this one's, in order."""
    try:
        names = [path.name for path in run.checkpoints.iterdir()]
    except OSError:
        return []
    return sorted({int(match[1]) for match in map(_STEP.fullmatch, names) if match})


def _learnt(steps: list[int]) -> int | None:
    return max((after - before for before, after in pairwise(steps[-REMEMBERED - 1 :])), default=None)


def _every(run: RunDir) -> int | None:
    """`checkpoint.every` of the settings as they were frozen; None where the trainer saves only at its end."""
    try:
        given: Any = json.loads(run.trainer_config.read_text())["checkpoint"]["every"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return given if isinstance(given, int) and given > 0 else None
