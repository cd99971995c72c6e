"""All that a trainer and whoever drives it share: environment names, files, and what is written in them.

Standard library only, so that the driver can read it without torch, and so that any other trainer can copy it.
The driver exports the `Env` names; a name that is absent means that nobody asks for that thing.
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
    """A file of this attempt alone: when it exists, save and stop. The only one that a foreign trainer has to poll:
    the driver mirrors kill, pause, signals and preemption into it."""
    STACKS_REQUEST = "TRAIN_STACKS_REQUEST"
    """A file whose new mtime asks every rank for its stacks: appended to `<attempt>/stacks/<node>-<rank>.txt`."""
    DEADLINE = "TRAIN_DEADLINE"
    """A file with the job's real end, in seconds since the epoch; read it again at every poll, for it may move."""
    STOP_REASON = "TRAIN_STOP_REASON"
    HEARTBEAT_DIR = "TRAIN_HEARTBEAT_DIR"
    CHECKPOINT_DIR = "TRAIN_CHECKPOINT_DIR"
    LAST_TICK = "TRAIN_LAST_TICK"
    """A file with the time, in seconds since the epoch, at which whoever watches the run last gave a sign of life."""
    NODE = "TRAIN_NODE"
    """The node's name as the scheduler knows it (several nodes may share one host)."""


class Phase(StrEnum):
    """What a trainer is doing; each has its own idea of how long is too long."""

    INIT = "init"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    EXIT = "exit"


class TrainerStop(StrEnum):
    """Why a trainer left by itself. Anything else that ends it leaves no stop reason."""

    FINISHED = "finished"
    KILL = "kill"
    PAUSE = "pause"
    STOP_REQUEST = "stop-request"
    DEADLINE = "deadline"
    MEMORY = "memory"
    NAN = "nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What the trainer last did. Rank 0 writes `train.json`, one rank of each node `<node>-<local rank>.json`.

    `at` is in seconds since the epoch by the writer's clock; `limit_s` is the longest that the phase may take.
    """

    attempt: str
    node: str
    rank: int
    phase: Phase
    step: int
    at: float
    limit_s: float
    last_steps: int | None = None
    """The step at which the run ends, if known."""
    checkpoint_step: int | None = None
    """The newest complete checkpoint, if any."""
    loss: float | None = None
    step_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Written by rank 0 just before a trainer that decided to stop exits 0 (or, for `nan` and `memory`, non-zero)."""

    reason: TrainerStop
    step: int
    at: float
    detail: str = ""
    checkpoint_step: int | None = None
    notes: tuple[str, ...] = field(default=())
    """What went wrong on the way and did not stop the run, such as a save that found a full disk."""


def to_json(record: Heartbeat | StopReason) -> str:
    return json.dumps(asdict(record), sort_keys=True) + "\n"


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The heartbeat at `path`, or None if there is none that can be understood."""
    return _read(path, Heartbeat, {"phase": Phase})


def read_stop_reason(path: Path) -> StopReason | None:
    """The stop reason at `path`, or None if there is none that can be understood."""
    return _read(path, StopReason, {"reason": TrainerStop, "notes": tuple})


def _read(path: Path, cls: Callable[..., T], convert: Mapping[str, Callable[[Any], Any]]) -> T | None:
    try:
        given = json.loads(path.read_text())
        return cls(**{key: convert[key](value) if key in convert else value for key, value in given.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def read_time(path: Path) -> float | None:
    """The time in a file, such as the job's end, in seconds since the epoch; None if it cannot be read."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
