"""The journal of a train: append-only events, and the history that they add up to.

Every host and user appends to a file of its own, one write() an event, so that no lock is needed. The number of an
event is one more than the highest number at the ends of the files. Readers order by number: clocks of nodes differ.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from opsctl import __version__
from opsctl.base.errors import RunDirError, writing
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.system import user_name
from opsctl.state.events import (
    ArrayLost,
    AttemptEvent,
    AttemptFinalized,
    AttemptsLeftOut,
    AttemptStarted,
    Cancelled,
    Cancelling,
    Diagnosed,
    EndCount,
    Event,
    ExclusionDecided,
    Held,
    HoldReleased,
    RepairAwaited,
    SubmitRefused,
    Submitted,
    Submitting,
    cancels_train,
    parse_event,
    to_line,
)
from opsctl.state.files import append_line, parse_json
from opsctl.state.journal_files import SNAPSHOT, JournalFiles
from opsctl.state.run_dir import Attempt, RunDir

log = logging.getLogger(__name__)

RECENT_ATTEMPTS = 50
"""Finalized attempts that stay in the snapshot: more than any rule about attempts in a row looks at."""
COUNTED_EXCLUSIONS = timedelta(days=2)
"""How long an exclusion of an old attempt stays in the snapshot: rules count those of a day."""
MAX_NUMBER = 10**15
WRITING_S = 60.0
"""A last line without an end is being written for at most so long, and was cut off later."""


class Journal:
    """The journal of one train. Each line is read once; later calls read what was appended since."""

    def __init__(self, run: RunDir, clock: Clock) -> None:
        self.run = run
        self.clock = clock
        self._files = JournalFiles(run.journal)
        self._lock = threading.Lock()

    def append(self, event: Event) -> Event:
        """Append an event; return it with its number and time.

        Raises RunDirError if the event cannot be written; then the journal is unchanged.
        """
        event = replace(
            event,
            number=min(1 + self._files.find_last_number(), MAX_NUMBER),
            at=self.clock.now().isoformat(timespec="milliseconds"),
            actor=f"{actor()}@{hostname()}:{os.getpid()}",
            opsctl=__version__,
        )
        # Two hosts may give the same number in the same moment: their order is then that of their clocks.
        line = to_line(event)
        parse_event(parse_json(line))  # raises ValueError for an event that nobody could read back
        # A file for each host and user: appending by several hosts overwrites lines on some network file systems.
        path = self.run.journal / f"{hostname()}-{os.geteuid()}.jsonl"
        with writing(path):
            append_line(path, line)
        log.debug("%s: %a", self.run.name, event)  # its texts may hold surrogates
        return event

    def events(self) -> list[Event]:
        """Return the readable events in order, without those of old attempts, which `all_events` has as well.

        Truncated and invalid lines are left to `list_damages`. Raises RunDirError for a journal that cannot be read.
        """
        with self._lock:
            self._files.refresh()
            return list(self._files.events)

    def all_events(self) -> list[Event]:
        """Return the readable events of the whole history, in order. Raises RunDirError."""
        return self._files.read_all()

    def list_damages(self, events: Sequence[Event]) -> list[str]:
        """Return a line for each part that could not be read when `events` were, and for events that are missing.

        Numbers have no gaps, but in a snapshot, which leaves events out.
        """
        begun_s = self.clock.now().timestamp() - WRITING_S
        cut = [f"{path}: its last line is cut off" for path, at in self._files.unfinished.items() if at < begun_s]
        numbers = {event.number for event in events}
        is_whole = bool(numbers) and not any(isinstance(event, AttemptsLeftOut) for event in events)
        missing = max(numbers) - len(numbers) - len(self._files.damages) - len(cut) if is_whole else 0
        lost = [f"{self.run.journal}: {missing} events are missing"] if missing > 0 else []
        return [*self._files.damages, *cut, *lost]

    def leave_out_old(self) -> None:
        """Write a snapshot without the events of old attempts, once there are many. The files keep every event.

        So reading costs the same after a day and after a year. Raises RunDirError for a journal that cannot be read.
        """
        with self._lock:
            self._files.refresh()
            events = self._files.events
            history = replay(events)
            finalized = [attempt for attempt in history.started if attempt in history.finalized]
            if len(finalized) < 2 * RECENT_ATTEMPTS:
                return
            old = finalized[:-RECENT_ATTEMPTS]
            left_out = AttemptsLeftOut(
                number=events[0].number,
                at=events[0].at,
                attempts=(*history.left_out, *old),
                ends=tuple(history.count_ends(old)),
            )
            counted_since = self.clock.now() - COUNTED_EXCLUSIONS
            remaining = [event for event in events if not _is_left_out(event, frozenset(old), counted_since)]
            remaining = list(_name_arrays(remaining, history))
            try:
                self.run.write(self.run.journal / SNAPSHOT, self._files.format_snapshot([left_out, *remaining]))
            except RunDirError as error:  # readers then read the files
                log.warning("%s", error)


def _name_arrays(events: Sequence[Event], history: "TrainHistory") -> Iterator[Event]:
    """Yield the events, and behind a submission without a result its array, which only a start of an attempt shows."""
    submitted = {event.nonce for event in events if isinstance(event, Submitted)}
    arrays = {array.nonce: array.id for array in history.arrays.values() if array.nonce not in submitted}
    for event in events:
        yield event
        if isinstance(event, Submitting) and event.nonce in arrays:
            yield Submitted(number=event.number, at=event.at, nonce=event.nonce, array=arrays[event.nonce])


def _is_left_out(event: Event, old: Set[str], counted_since: datetime) -> bool:
    match event:
        case AttemptsLeftOut():
            return True
        case ExclusionDecided():
            return event.attempt in old and max(event.until, event.when) < counted_since
        case AttemptEvent():
            return event.attempt in old
    return False


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
    left_out: tuple[str, ...] = ()
    """Old finalized attempts, in order, whose events were left out."""
    ends_left_out: tuple[EndCount, ...] = ()
    """How those attempts ended."""
    started: dict[str, datetime] = field(default_factory=dict)
    """Start of every other attempt, in order."""
    finalized: dict[str, AttemptFinalized] = field(default_factory=dict)
    """The finalizing event of every attempt."""
    diagnosed: dict[str, Diagnosed] = field(default_factory=dict)
    """The diagnosis of every attempt that has one."""
    held: Held | None = None
    """The hold in force, as far as known."""
    repair: RepairAwaited | None = None
    """The wait of the newest attempt's nodes for a repair, also after its end."""
    cancelling: Cancelling | None = None
    """The started cancellation whose result is unknown."""
    cancelled: Cancelled | None = None
    """The cancellation of the whole train, if nothing was submitted since."""

    @property
    def attempts(self) -> list[str]:
        """All attempts, in order."""
        return [*self.left_out, *self.started]

    def count_ends(self, attempts: Iterable[str] | None = None) -> list[EndCount]:
        """Return how the attempts ended: those left out, and `attempts`, by default all that are finalized."""
        counts: Counter[tuple[str, str]] = Counter()
        for end in self.ends_left_out:
            counts[end.outcome, end.cause] += end.attempts
        for attempt in self.finalized if attempts is None else attempts:
            diagnosed = self.diagnosed.get(attempt)
            counts[self.finalized[attempt].outcome, diagnosed.cause if diagnosed else ""] += 1
        return [EndCount(outcome, cause, count) for (outcome, cause), count in counts.items()]

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
        case AttemptsLeftOut():
            history.left_out, history.ends_left_out = event.attempts, event.ends
        case AttemptStarted():
            _started(history, event)
        case Diagnosed():
            history.diagnosed[event.attempt] = event
        case AttemptFinalized():
            history.finalized[event.attempt] = event
        case Held() | HoldReleased():
            history.held = event if isinstance(event, Held) else None
            history.repair = None
        case RepairAwaited():
            history.repair = event
        case Cancelling() | Cancelled():
            history.cancelling = event if isinstance(event, Cancelling) else None
            history.cancelled = event if cancels_train(event) else history.cancelled
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
    history.held = history.cancelling = history.cancelled = None


def _started(history: TrainHistory, event: AttemptStarted) -> None:
    """Record the start. An attempt of an unknown array proves that an interrupted submission was accepted."""
    array = Attempt(Path(event.attempt)).array
    if array not in history.arrays and len(history.pending) == 1:
        nonce, submitting = history.pending.popitem()
        history.arrays[array] = Array(id=array, nonce=nonce, tasks=submitting.tasks, submitted=submitting.when)
    if event.attempt in history.left_out:
        history.left_out = tuple(attempt for attempt in history.left_out if attempt != event.attempt)
    history.started[event.attempt] = event.when
    history.repair = None
    history.finalized.pop(event.attempt, None)  # a killed controller reuses ids
