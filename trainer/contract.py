"""The contract between a trainer and its driver: environment variables, files and their contents.

Standard library only: the driver imports this module without torch. Other trainers copy opsctl_contract.py.
The driver exports the `Env` names; an absent name means that the driver does not use the feature.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from opsctl.trainer.bounded_files import read_bounded

T = TypeVar("T", "Heartbeat", "StopReason", "RankStepTimes")

MAX_RECORD_BYTES = 64 << 10
"""A heartbeat, a stop reason or a time. A longer file is not read."""
MAX_STEP = 10**15
MAX_TEXT_CHARS = 10_000


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
    STEP_TIMES_DIR = "TRAIN_STEP_TIMES_DIR"
    """A directory of this attempt for RankStepTimes, `<rank>.json`. A rank that has any makes the directory."""
    CHECKPOINT_DIR = "TRAIN_CHECKPOINT_DIR"
    MLFLOW_RUN = "TRAIN_MLFLOW_RUN"
    """A file for the id of the run in MLflow: the next attempt gets the id as MLFLOW_RUN_ID."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepTimes:
    """The time that one rank needs for its own work in a step. Optional; every rank may write this record.

    In a synchronous training all ranks take the same time per step. Only the time without the waits for other ranks
    shows a slow one.
    """

    node: str
    rank: int
    local_rank: int
    steps: int
    """Steps whose times are in the median."""
    compute_s: float
    """Median of the seconds a step without communication, such as of the forward passes."""
    work: str = ""
    """Ranks with the same text do the same work on the same hardware; only these are compared."""


def to_json(record: Heartbeat | StopReason | RankStepTimes) -> str:
    return json.dumps(asdict(record), sort_keys=True) + "\n"


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the heartbeat at `path`; None if the file is missing or invalid."""
    return _read(path, Heartbeat)


def read_stop_reason(path: Path) -> StopReason | None:
    """Return the stop reason at `path`; None if the file is missing or invalid."""
    return _read(path, StopReason)


def read_step_times(path: Path) -> RankStepTimes | None:
    """Return the step times at `path`; None if the file is missing or invalid."""
    times = _read(path, RankStepTimes)
    return times if times and times.compute_s > 0 else None


def _read(path: Path, cls: type[T]) -> T | None:
    try:
        record = json.loads(read_bounded(path, MAX_RECORD_BYTES))
        kinds = cls.__annotations__  # texts, by the import of annotations
        return cls(**{key: _parse(kinds[key], value) for key, value in record.items()})
    except (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return None


def _parse(kind: str, value: Any) -> Any:
    """Return the value of a field with the annotation `kind`. Raises ValueError, OverflowError.

    Times are finite; a loss, which may be absent, may be nan or infinite as well.
    """
    is_optional, kind = kind.endswith(" | None"), kind.removesuffix(" | None")
    match kind, value:
        case _, None if is_optional:
            return None
        case "str", str() if len(value) <= MAX_TEXT_CHARS:
            return value
        case "tuple[str, ...]", list():
            return tuple(_parse("str", text) for text in value)
        case "int", int() if type(value) is int and 0 <= value <= MAX_STEP:  # a bool is an int as well
            return value
        case "float", int() | float() if type(value) is not bool and (is_optional or math.isfinite(value)):
            return float(value)
        case "Phase" | "TrainerStop", str():
            return {"Phase": Phase, "TrainerStop": TrainerStop}[kind](value)
    raise ValueError(f"{value!r:.80} is no {kind}")


def read_time(path: Path) -> float | None:
    """Return the time in the file `path`, in seconds since the epoch; None if the file cannot be read."""
    try:
        time = float(read_bounded(path, MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return None
    return time if math.isfinite(time) else None
