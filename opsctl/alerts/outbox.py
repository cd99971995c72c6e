"""Messages on their way: one file for each message and channel, kept until it is delivered.

Each channel is a queue, emptied by one process at a time, oldest first. A channel that does not answer, or asks for
time, holds up its own queue and nothing else; the first that gets through is followed by all that waits behind it.
Delivered at least once: twice, under the same id, where the answer was cut off, and then the journal says so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from opsctl.alerts.message import Message
from opsctl.errors import OpsctlError, RunDirError, cannot_write
from opsctl.ports import Clock
from opsctl.state.lease import HeldLease, LeaseBusy, lease
from opsctl.state.site_dir import SiteDir

FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(hours=1)
MOST_ASKED = 2 * LONGEST_WAIT - FIRST_WAIT
"""For so long the other side may make us wait."""
KEEP = timedelta(days=30)
GIVE_UP = timedelta(days=30)
"""What nobody could be given for so long is set aside: who has not missed it by then is not helped by it, and a channel
that is dead for ever would fill the disk."""
LEAST_TRIES = 100
"""But not before the channel has failed so often: a clock that is a month ahead is no month of trying."""
KEEP_SET_ASIDE = timedelta(days=365)
MOST_FAILURES = 2
"""So many threads in a row may fail before the channel is left alone for now."""
BUDGET = 40.0
"""Seconds after which no further message is begun: a cycle has other things to do."""


class Undelivered(OpsctlError):
    """A channel did not take a message. What it says is without secrets.

    `is_permanent`: the same would fail again, until somebody changes something. `is_ambiguous`: it may have been taken
    all the same. `retry_after`: so many seconds the other side wants us to wait.
    """

    def __init__(
        self, message: str, *, is_permanent: bool = False, is_ambiguous: bool = False, retry_after: float = 0
    ) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        self.is_ambiguous = is_ambiguous
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxItem:
    """One message for one channel."""

    message: Message
    channel: str
    number: int
    """Of its batch: items are delivered in this order."""
    not_before: datetime | None = None
    """The end of the quiet hours that it waits for."""
    attempts: int = 0
    next_attempt: datetime | None = None
    asked_until: datetime | None = None
    """The channel wants nothing before then, neither this nor any other message."""
    is_refused: bool = False
    """It failed for good, as far as the channel says: it holds up no others."""
    sending: datetime | None = None
    """An attempt was begun then, and nothing is known of how it ended."""
    error: str = ""
    fallback: str = ""
    """The channel that was tried instead."""
    reference: str = ""
    """What the channel calls the message, once it has it."""
    is_delivered: bool = False
    """It was taken, as far as could be written down."""

    @property
    def name(self) -> str:
        return f"{self.number:08d}~{self.message.id}.json"

    def is_held_back(self, now: datetime) -> bool:
        """The quiet hours are not over. Where their end lies further ahead than a day, a clock was wrong."""
        return self.not_before is not None and now < self.not_before < now + timedelta(hours=25)

    def must_wait(self, now: datetime) -> bool:
        """The other side has asked for time, and it is not over; for more than we ever give, a clock was wrong."""
        return self.asked_until is not None and now < self.asked_until < now + 2 * LONGEST_WAIT

    def is_due(self, now: datetime) -> bool:
        """It is time to try, or the time that was set lies further ahead than any that we set: a clock was wrong."""
        if self.is_held_back(now):
            return False
        return self.next_attempt is None or not now < self.next_attempt < now + 2 * LONGEST_WAIT


_ITEM = TypeAdapter(OutboxItem)

Deliver = Callable[[OutboxItem], str]
"""Sends one item: the channel's own name for it. Raises Undelivered."""

GiveUp = Callable[[OutboxItem], str]
"""Asked of what still waits: the channel by which it is sent instead, if it is time for that."""

Note = Callable[..., None]
"""Writes into the journal of alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of one item."""

    item: OutboxItem
    error: Undelivered | None = None


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox of a site. Its methods raise RunDirError where it cannot be written."""

    site: SiteDir
    clock: Clock
    note: Note
    elsewhere: Outbox | None = None
    """The spare one, or the one that it is the spare of: what was delivered there is not delivered again."""

    def put(self, item: OutboxItem) -> None:
        """Have it delivered. One that is there already, or was delivered, is left as it is."""
        if self.knows(item) or (self.elsewhere and self.elsewhere.has_delivered(item)):
            return
        queue = self.queue(item.channel)
        try:
            queue.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(queue, error) from error
        self._write(queue / item.name, item)

    def knows(self, item: OutboxItem) -> bool:
        places = (self.delivered(item.channel), self.queue(item.channel), self.lost(item.channel))
        return any((place / item.name).exists() for place in places)

    def has_delivered(self, item: OutboxItem, channel: str = "") -> bool:
        return (self.delivered(channel or item.channel) / item.name).exists()

    def waiting(self) -> list[OutboxItem]:
        """All that is not delivered, the oldest first."""
        queues = self.site.alerts.glob("outbox/*/")
        return sorted((item for queue in queues for item in _items(queue)), key=lambda item: item.name)

    def queues(self) -> set[str]:
        """The channels that something waits for."""
        return {path.parent.name for path in self.site.alerts.glob("outbox/*/*.json")}

    def reference(self, channel: str, message: str) -> str:
        """What `channel` calls the message of that id; empty where it was not delivered there, or has no names."""
        paths = self.delivered(channel).glob(f"*~{message}.json")
        return next((item.reference for path in paths if (item := _read(path))), "")

    def flush(self, channel: str, deliver: Deliver, give_up: GiveUp) -> list[Delivery]:
        """Deliver what waits for `channel`, if any of it is due; nothing where somebody else is at it."""
        queue = self.queue(channel)
        if not queue.is_dir():
            return []
        attempts: list[Delivery] = []
        with contextlib.suppress(LeaseBusy), self._alone(channel) as held:
            for attempt in self._tried(queue, deliver, held):
                attempts.append(attempt)
            for item in _items(queue):
                if not item.fallback and (fallback := give_up(item)):
                    self._try_to_write(queue / item.name, replace(item, fallback=fallback))
        self._prune(channel)
        return attempts

    def abandon(self, channel: str, attempts: Sequence[Delivery]) -> list[OutboxItem]:
        """What is to be set aside, after a flush that tried and to which the channel gave no sign of life."""
        if not attempts or any(attempt.error is None or attempt.item.asked_until for attempt in attempts):
            return []
        items, now = _items(self.queue(channel)), self.clock.now()
        if max((item.attempts for item in items), default=0) < LEAST_TRIES:
            return []
        return [item for item in items if now - (item.not_before or item.message.at) > GIVE_UP]

    def set_aside(self, channel: str, items: Sequence[OutboxItem]) -> None:
        """Try these no more. They are kept for a year, for people to read."""
        with contextlib.suppress(LeaseBusy), self._alone(channel):
            for item in items:
                place = self.lost(channel)
                try:
                    place.mkdir(parents=True, exist_ok=True)
                    (self.queue(channel) / item.name).replace(place / item.name)
                except FileNotFoundError:  # somebody else was faster
                    continue
                except OSError as error:
                    raise cannot_write(place, error) from error
                self.note("given-up", channel=channel, id=item.message.id, attempts=item.attempts, why=item.error)

    def abandoned(self) -> list[OutboxItem]:
        """What was set aside, the oldest first."""
        outbox_items = (item for place in self.site.alerts.glob("undelivered/*/") for item in _items(place))
        return sorted(outbox_items, key=lambda item: item.name)

    @contextlib.contextmanager
    def _alone(self, channel: str) -> Iterator[list[HeldLease]]:
        """With nobody else at this channel, here or in the other outbox, where the same may wait.

        Always taken in the same order: of two who want both, one gets them. Raises Busy, RunDirError.
        """
        mine = self.queue(channel)
        queues = {mine, self.elsewhere.queue(channel)} if self.elsewhere else {mine}
        held: list[HeldLease] = []
        with contextlib.ExitStack() as stack:
            for queue in sorted(path for path in queues if path.is_dir()):
                try:
                    held.append(stack.enter_context(lease(queue, self.clock, wait=0)))
                except RunDirError:
                    if queue == mine:
                        raise
            yield held

    def _tried(self, queue: Path, deliver: Deliver, held: Sequence[HeldLease]) -> Iterator[Delivery]:
        """Try one after the other, until the time is over or the channel seems to be down. What belongs to a thread
        that is stuck waits behind it: the good news does not come before the bad.
        """
        until = self.clock.monotonic() + BUDGET
        stuck: set[str] = set()
        failures = 0
        for item in self._due(queue):
            if failures >= MOST_FAILURES or self.clock.monotonic() >= until:
                return
            if item.message.root not in stuck:
                for held_lease in held:
                    held_lease.refresh()
                attempt = self._attempt(queue / item.name, item, deliver)
                if attempt.error is None:
                    failures = 0
                elif not attempt.error.is_permanent:
                    stuck.add(item.message.root)
                    failures += 1
                yield attempt
                if attempt.item.asked_until:
                    return

    def _due(self, queue: Path) -> list[OutboxItem]:
        """All that may be sent now, if any is due: one that gets through shows that the others can."""
        now = self.clock.now()
        items = [item for item in _items(queue) if not self._is_done(queue / item.name, item)]
        if any(item.must_wait(now) for item in items) or not any(item.is_due(now) for item in items):
            return []
        return [item for item in items if item.is_due(now) or not (item.is_refused or item.is_held_back(now))]

    def _is_done(self, path: Path, item: OutboxItem) -> bool:
        """Whether it was delivered by another way; then it is put away."""
        by_fallback = item.fallback and self.has_delivered(item, item.fallback)
        is_done = bool(by_fallback or (self.elsewhere and self.elsewhere.has_delivered(item)))
        if item.is_delivered:
            self._put_away(path, item, is_written=True)
        elif is_done:
            self._archive(path, replace(item, error=f"delivered by {item.fallback or 'the spare outbox'}"))
        return is_done or item.is_delivered

    def _attempt(self, path: Path, item: OutboxItem, deliver: Deliver) -> Delivery:
        now = self.clock.now()
        if item.sending:
            self.note("ambiguous", channel=item.channel, id=item.message.id, why="an attempt ended without saying how")
        item = replace(item, attempts=item.attempts + 1, sending=now)
        self._try_to_write(path, item)
        try:
            reference = deliver(item)
        except Undelivered as error:
            if error.is_ambiguous:
                self.note("ambiguous", channel=item.channel, id=item.message.id, why=error.message)
            after = _next(item, error, now)
            item = replace(
                item, sending=None, error=error.message, is_refused=error.is_permanent, next_attempt=after,
                asked_until=_asked(error, now),
            )  # fmt: skip
            self._try_to_write(path, item)
            return Delivery(item=item, error=error)
        item = replace(item, sending=None, error="", asked_until=None, reference=reference, is_delivered=True)
        self._put_away(path, item, is_written=self._try_to_write(path, item))
        return Delivery(item=item)

    def _put_away(self, path: Path, item: OutboxItem, *, is_written: bool) -> None:
        self.note("delivered", channel=item.channel, id=item.message.id, attempts=item.attempts)
        self._archive(path, item, is_written=is_written)

    def _archive(self, path: Path, item: OutboxItem, *, is_written: bool = False) -> None:
        # Moving needs no space on the disk: what was delivered is not to be sent again.
        place = self.delivered(item.channel)
        try:
            place.mkdir(parents=True, exist_ok=True)
            path.replace(place / path.name)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            self.note("unfiled", channel=item.channel, id=item.message.id, why=str(error))
            return
        if not is_written:
            self._try_to_write(place / path.name, item)

    def _prune(self, channel: str) -> None:
        now = self.clock.now()
        for place, time in ((self.delivered(channel), KEEP), (self.lost(channel), KEEP_SET_ASIDE)):
            oldest = (now - time).timestamp()
            for path in place.glob("*.json"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _try_to_write(self, path: Path, item: OutboxItem) -> bool:
        """What cannot be noted of an attempt does not hold it back."""
        try:
            self._write(path, item)
        except RunDirError:
            return False
        return True

    def _write(self, path: Path, item: OutboxItem) -> None:
        text = json.dumps(_ITEM.dump_python(item, mode="json"), ensure_ascii=False, indent=1)
        self.site.write(path, text + "\n")

    def queue(self, channel: str) -> Path:
        return self.site.alerts / "outbox" / channel

    def delivered(self, channel: str) -> Path:
        return self.site.alerts / "delivered" / channel

    def lost(self, channel: str) -> Path:
        return self.site.alerts / "undelivered" / channel


def _items(queue: Path) -> list[OutboxItem]:
    """In order. A file that is no item is left where it is."""
    return [item for path in sorted(queue.glob("*.json")) if (item := _read(path)) and item.name == path.name]


def _read(path: Path) -> OutboxItem | None:
    try:
        return _ITEM.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _next(item: OutboxItem, error: Undelivered, now: datetime) -> datetime:
    """Ever later, and not before the other side wants it; what was refused is tried seldom."""
    grown = LONGEST_WAIT if error.is_permanent else min(FIRST_WAIT * 2 ** min(item.attempts - 1, 10), LONGEST_WAIT)
    return max(now + grown, _asked(error, now) or now)


def _asked(error: Undelivered, now: datetime) -> datetime | None:
    """Until when the other side wants us to wait, within reason."""
    seconds = min(error.retry_after, MOST_ASKED.total_seconds())
    return now + timedelta(seconds=seconds) if seconds else None
