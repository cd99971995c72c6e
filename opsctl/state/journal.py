"""The journal of a train: append-only events, and the history that they add up to.

Every host and user appends to a file of its own, one write() an event, so that no lock is needed. The number of an
event is one more than the highest number that the writer could read. Readers order by number: clocks of nodes differ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from opsctl import __version__
from opsctl.base.errors import RunDirError, cannot_read, cannot_write
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.system import user_name
from opsctl.state.events import (
    ArrayLost,
    AttemptFinalized,
    AttemptStarted,
    Cancelled,
    Cancelling,
    Diagnosed,
    Event,
    Held,
    HoldReleased,
    SubmitRefused,
    Submitted,
    Submitting,
    parse_event,
    to_line,
)
from opsctl.state.files import append_line, list_names, open_regular, parse_json
from opsctl.state.run_dir import Attempt, RunDir

log = logging.getLogger(__name__)

MAX_JOURNAL_BYTES = 64 << 20
MAX_LINE_BYTES = 1 << 20
MAX_EVENTS = 200_000
"""A train of a year has some ten thousand events."""
MAX_FILES = 10_000
"""One for each host and user."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one train."""

    run: RunDir
    clock: Clock

    def append(self, event: Event) -> Event:
        """Append an event; return it with its number and time.

        Raises RunDirError if the event cannot be written; then the journal is unchanged.
        """
        event = replace(
            event,
            number=1 + max((event.number for event in self.events()), default=0),
            at=self.clock.now().isoformat(timespec="milliseconds"),
            actor=f"{actor()}@{hostname()}:{os.getpid()}",
            opsctl=__version__,
        )
        line = to_line(event)
        parse_event(parse_json(line))  # raises ValueError for an event that nobody could read back
        path = self.run.journal / f"{hostname()}-{os.geteuid()}.jsonl"
        try:
            append_line(path, line)
        except OSError as error:
            raise cannot_write(path, error) from error
        log.debug("%s: %a", self.run.name, event)  # its texts may hold surrogates
        return event

    def events(self) -> list[Event]:
        """Return the readable events, in order. Truncated and invalid lines are skipped.

        Raises RunDirError for a journal that cannot be read, or that is larger than any train's.
        """
        events: list[Event] = []
        for path in self._files():
            try:
                for event in _read(path):
                    events.append(event)
                    if len(events) > MAX_EVENTS:
                        raise RunDirError(f"{self.run.journal}: more than {MAX_EVENTS} events")
            except OSError as error:
                raise cannot_read(path, error) from error
        return sorted(events, key=lambda event: (event.number, event.at))

    def _files(self) -> list[Path]:
        try:
            names = list_names(self.run.journal, max_entries=MAX_FILES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read(self.run.journal, error) from error
        return [self.run.journal / name for name in sorted(names) if name.endswith(".jsonl")]


def _read(path: Path) -> Iterator[Event]:
    """Yield the events of one file. Raises OSError, RunDirError."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_JOURNAL_BYTES:
            raise RunDirError(f"{path}: larger than {MAX_JOURNAL_BYTES >> 20} MiB, which no train's journal is")
        while line := file.readline(MAX_LINE_BYTES):
            try:
                yield parse_event(parse_json(line))
            except ValueError:  # truncated, or not an event
                continue


def actor() -> str:
    """Return the name of the effective user. $USER is not reliable."""
    return user_name(os.geteuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One submission of the train that Slurm has accepted."""

    id: str
    nonce: str
    tasks: int
    submitted: datetime


@dataclass(slots=True)
class TrainHistory:
    """The state of a train according to its events."""

    arrays: dict[str, Array] = field(default_factory=dict)
    """Accepted submissions by array id, in order."""
    pending: dict[str, Submitting] = field(default_factory=dict)
    """Started submissions whose result is unknown, by nonce."""
    started: dict[str, datetime] = field(default_factory=dict)
    """Start of every attempt, in order."""
    finalized: dict[str, AttemptFinalized] = field(default_factory=dict)
    """The finalizing event of every attempt."""
    diagnosed: dict[str, Diagnosed] = field(default_factory=dict)
    """The diagnosis of every attempt that has one."""
    held: Held | None = None
    """The hold in force, as far as known."""
    cancelling: Cancelling | None = None
    """The started cancellation whose result is unknown."""

    def newest_attempt(self, task: str) -> str:
        """Return the name of the newest attempt of a task, such as `12_3`; its first if none is journalled."""
        return next((name for name in reversed(self.started) if name.rpartition(".")[0] == task), f"{task}.0")


def replay(events: Iterable[Event]) -> TrainHistory:
    """Return the history after `events`. Kinds without a step change nothing."""
    history = TrainHistory()
    for event in events:
        _take(history, event)
    return history


def _take(history: TrainHistory, event: Event) -> None:
    match event:
        case AttemptStarted():
            _started(history, event)
        case Diagnosed():
            history.diagnosed[event.attempt] = event
        case AttemptFinalized():
            history.finalized[event.attempt] = event
        case Held() | HoldReleased():
            history.held = event if isinstance(event, Held) else None
        case Cancelling() | Cancelled():
            history.cancelling = event if isinstance(event, Cancelling) else None
        case _:
            _take_submission(history, event)


def _take_submission(history: TrainHistory, event: Event) -> None:
    match event:
        case Submitting():
            history.pending[event.nonce] = event
        case Submitted():
            _submitted(history, event)
        case SubmitRefused():
            history.pending.pop(event.nonce, None)
        case ArrayLost():
            history.arrays.pop(event.array, None)


def _submitted(history: TrainHistory, event: Submitted) -> None:
    submitting = history.pending.pop(event.nonce, None)
    known = history.arrays.get(event.array)
    tasks = known.tasks if known and known.nonce == event.nonce else 0
    if submitting:
        tasks = submitting.tasks
    history.arrays[event.array] = Array(id=event.array, nonce=event.nonce, tasks=tasks, submitted=event.when)
    history.held = history.cancelling = None


def _started(history: TrainHistory, event: AttemptStarted) -> None:
    """Record the start. An attempt of an unknown array proves that an interrupted submission was accepted."""
    array = Attempt(Path(event.attempt)).array
    if array not in history.arrays and len(history.pending) == 1:
        nonce, submitting = history.pending.popitem()
        history.arrays[array] = Array(id=array, nonce=nonce, tasks=submitting.tasks, submitted=submitting.when)
    history.started[event.attempt] = event.when
    history.finalized.pop(event.attempt, None)  # a killed controller reuses ids
