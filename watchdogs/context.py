"""The input of the watchdogs: the site, its trains and one snapshot of Slurm for all of them."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from opsctl.base.errors import RunDirError
from opsctl.base.model import Job, JobState, Node
from opsctl.base.ports import Clock, Runner
from opsctl.launch.train_arrays import TrainSnapshot
from opsctl.settings.loader import SiteSettings, TrainSettings
from opsctl.state.events import Cancelled, Event, Submitted, cancels_train
from opsctl.state.files import MAX_STATE_BYTES, make_directories, read_text, set_aside, write_atomic
from opsctl.state.records import HEADER, load_state
from opsctl.state.run_dir import Attempt, RunDir

Remembered = TypeVar("Remembered")
ACCEPTING = ("loss", "throughput")
"""Watchdogs that compare with a level and can accept another one."""


@dataclass(frozen=True, slots=True)
class WatchdogMemory:
    """JSON files in which watchdogs remember facts between cycles. Lost files are rebuilt by later cycles."""

    directory: Path
    problems: list[str] = field(default_factory=list)
    """Failed writes."""
    spare: Path | None = None
    """Directory used when `directory` cannot be written, such as on a full disk."""

    def recall(self, cls: type[Remembered], watchdog: str, thing: str) -> Remembered:
        """Return what was remembered of a thing; what a first cycle begins with, if nothing valid was."""
        return self.find(cls, watchdog, thing) or cls()

    def find(self, cls: type[Remembered], watchdog: str, thing: str) -> Remembered | None:
        """Return what was remembered of a thing; None if nothing valid was. A damaged file is kept aside."""
        contents = map(_read, reversed(self._paths(watchdog, thing)))
        return recall(cls, next((fields for fields in contents if fields is not None), None))

    def remember(self, watchdog: str, thing: str, value: object) -> None:
        """Store a frozen dataclass, so that `recall` returns it in the next cycle.

        A failure is only recorded in `problems`.
        """
        path, *spare = self._paths(watchdog, thing)
        text = json.dumps({**HEADER, **to_fields(value)})
        try:
            _write(path, text)
        except OSError as error:
            self.problems.append(f"{path}: {error.strerror or error}")
            with contextlib.suppress(OSError):
                for spare_path in spare:
                    _write(spare_path, text)
        else:
            with contextlib.suppress(OSError):
                for spare_path in spare:
                    spare_path.unlink(missing_ok=True)

    def _paths(self, watchdog: str, thing: str) -> list[Path]:
        places = [self.directory, *([self.spare] if self.spare else [])]
        return [place / watchdog / f"{quote(thing, safe='')}.json" for place in places]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """When a person last accepted a level as normal; empty if never."""

    at: str = ""
    by: str = ""
    reason: str = ""


def accept(memory: WatchdogMemory, key: str, *, at: str, by: str, reason: str) -> None:
    """Ask the watchdog of `key` to take the current level as normal. A failure is added to the memory's problems."""
    memory.remember("accepted", key, Acceptance(at=at, by=by, reason=reason))


def read_acceptance(memory: WatchdogMemory, key: str) -> str:
    """Return when a person last accepted the level of `key` as normal; empty if never."""
    return memory.recall(Acceptance, "accepted", key).at


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def recall(cls: Callable[..., Remembered], stored: object) -> Remembered | None:
    """Return the remembered value of a dataclass; None if nothing valid is stored."""
    try:
        value: Remembered = _adapter(cls).validate_python(stored)
    except ValidationError:
        return None
    return value


def to_fields(value: object) -> Any:
    """Return what to store of a dataclass, so that `recall` returns it in the next cycle."""
    cls: Any = type(value)
    return _adapter(cls).dump_python(value, mode="json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return load_state(_parse, path)
    except RunDirError:
        set_aside(path)
        return None


def _parse(fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in HEADER}


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError, ValueError):
        if read_text(path, MAX_STATE_BYTES) == text:
            return
    make_directories(path.parent)
    write_atomic(path, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTrain:
    run: RunDir
    config: TrainSettings
    snapshot: TrainSnapshot | None
    """The train's queue rows and history; None if Slurm did not answer."""
    damages: tuple[str, ...] = ()
    """Parts of the journal and records that cannot be read."""
    also: tuple[Job, ...] = ()
    """Queue rows that belong to the train although opsctl did not launch them."""
    events: tuple[Event, ...] = ()

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def running(self) -> Job | None:
        """The task in state RUNNING; None while a task completes, is suspended, or waits for a repair."""
        rows = self.snapshot.active if self.snapshot and not self.snapshot.history.repair else []
        return next((job for job in rows if job.state is JobState.RUNNING), None)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt of the running task."""
        if self.snapshot is None or self.running is None:
            return None
        return self.run.attempt(self.snapshot.history.newest_attempt(self.running.full_id))

    @property
    def is_over(self) -> bool:
        """Whether the train has no task in the queue and needs none."""
        return (
            self.snapshot is not None and not (self.snapshot.active or self.snapshot.waiting) and bool(self.why_ended)
        )

    @property
    def why_ended(self) -> str:
        """Why the train needs no task: cancelled, finished, killed or never launched; empty otherwise."""
        if self.snapshot is None:
            return ""
        history = self.snapshot.history
        finalized = list(history.finalized.values())
        outcome = finalized[-1].outcome if finalized else ""
        decided = [event for event in self.events if isinstance(event, Submitted) or cancels_train(event)]
        cancelled = decided[-1] if decided else None
        if isinstance(cancelled, Cancelled):
            is_by_end = finalized and cancelled.reason.attempt == finalized[-1].attempt
            who = "" if is_by_end else f"cancelled by {cancelled.actor.partition('@')[0]}: "
            return f"{who}{cancelled.reason}"
        last = list(history.started)[-1:]
        if outcome in {"finished", "killed"} and last and last[0] in history.finalized:
            return f"{outcome}: {finalized[-1].why}"
        return "" if history.arrays or history.pending else "it was never launched"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchContext:
    """The input of one watch cycle."""

    site: SiteSettings
    now: datetime
    clock: Clock
    runner: Runner
    """Runs programs with the environment of the site's Slurm."""
    memory: WatchdogMemory
    site_dir: Path
    trains: tuple[WatchedTrain, ...] = ()
    nodes: tuple[Node, ...] | None = None
    """Every node; None if Slurm did not answer."""
    acts: bool = True
    """Whether watchdogs may write: lines in the pulse log, requests for stacks."""
