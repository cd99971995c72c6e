"""The contract between a trainer and its driver: environment variables, files and their contents.

Standard library only: the driver imports this module without torch, and any other trainer may copy the module.
The driver exports the `Env` names; an absent name means that the driver does not use the feature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Env(StrEnum):
    """Environment variables that the driver sets for each rank."""

    RUN_DIR = "TRAIN_RUN_DIR"
    ATTEMPT = "TRAIN_ATTEMPT"
    KILL_SWITCH = "TRAIN_KILL_SWITCH"
    PAUSE_SWITCH = "TRAIN_PAUSE_SWITCH"
    SAVE_SWITCH = "TRAIN_SAVE_SWITCH"
    STOP_REQUEST = "TRAIN_STOP_REQUEST"
    """A file of this attempt alone: when the file exists, save and stop. Another trainer needs to poll only this file:
    the driver mirrors kill, pause, signals and preemption into it."""
    STACKS_REQUEST = "TRAIN_STACKS_REQUEST"
    """A file whose changed mtime requests the stacks of every rank, in `<attempt>/stacks/<node>-<rank>.txt`."""
    DEADLINE = "TRAIN_DEADLINE"
    """A file with the end of the job, in seconds since the epoch; read it at every poll, because the end may move."""
    STOP_REASON = "TRAIN_STOP_REASON"
    FINISHED = "TRAIN_FINISHED"
    """A file of this attempt: a trainer that creates the file says that the training is over."""
    HEARTBEAT_DIR = "TRAIN_HEARTBEAT_DIR"
    CHECKPOINT_DIR = "TRAIN_CHECKPOINT_DIR"
    LAST_TICK = "TRAIN_LAST_TICK"
    """A file with the time of the last cron tick that watched this run, in seconds since the epoch."""
    NODE = "TRAIN_NODE"
    """The node's name as the scheduler knows it (several nodes may share one host)."""


class Phase(StrEnum):
    """The phase of a trainer; every phase has its own time limit."""

    INIT = "init"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    EXIT = "exit"


class TrainerStop(StrEnum):
    """Why a trainer stopped itself. Any other end leaves no stop reason."""

    FINISHED = "finished"
    KILL = "kill"
    PAUSE = "pause"
    STOP_REQUEST = "stop-request"
    DEADLINE = "deadline"
    MEMORY = "memory"
    NAN = "nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last action of the trainer. Rank 0 writes `train.json`, one rank per node writes `<node>-<local rank>.json`.

    `at` is in seconds since the epoch by the writer's clock; `limit_s` is the longest duration of the phase.
    """

    attempt: str
    node: str
    rank: int
    phase: Phase
    step: int
    at: float
    limit_s: float
    last_steps: int | None = None
    """The step at which the run ends; None if unknown."""
    checkpoint_step: int | None = None
    """Step of the newest complete checkpoint, if there is one."""
    loss: float | None = None
    step_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why the trainer stopped itself. Rank 0 writes this record just before the trainer exits.

    The exit code is 0, except for `nan` and `memory`.
    """

    reason: TrainerStop
    step: int
    at: float
    detail: str = ""
    checkpoint_step: int | None = None
    notes: tuple[str, ...] = field(default=())
    """Problems that did not stop the run, such as a save on a full disk."""


def to_json(record: Heartbeat | StopReason) -> str:
    return json.dumps(asdict(record), sort_keys=True) + "\n"


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the heartbeat at `path`; None if the file is missing or invalid."""
    return _read(path, Heartbeat, {"phase": Phase})


def read_stop_reason(path: Path) -> StopReason | None:
    """Return the stop reason at `path`; None if the file is missing or invalid."""
    return _read(path, StopReason, {"reason": TrainerStop, "notes": tuple})


def _read(path: Path, cls: Callable[..., T], convert: Mapping[str, Callable[[Any], Any]]) -> T | None:
    try:
        fields = json.loads(path.read_text())
        return cls(**{key: convert[key](value) if key in convert else value for key, value in fields.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def read_time(path: Path) -> float | None:
    """Return the time in the file `path`, in seconds since the epoch; None if the file cannot be read."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
