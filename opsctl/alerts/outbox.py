"""The outbox: one file per message and channel, kept until the message is delivered.

Each channel has a queue, emptied by one process at a time: critical messages first, then the oldest. A channel that
does not answer, or asks for a delay, delays only its own queue; the first success is followed by all waiting messages.
Delivery is at least once: after a lost answer the message is sent again under the same id, and the journal records the
ambiguity.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from pydantic import TypeAdapter

from opsctl.alerts.ledger_state import rename_severity
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.errors import OpsctlError, RunDirError, cannot_write, writing
from opsctl.base.findings import Severity
from opsctl.base.ports import Clock
from opsctl.state.files import MAX_RECORD_BYTES, make_directories, parse_json, read_bounded, set_aside
from opsctl.state.lease import HeldLease, LeaseBusy, lease
from opsctl.state.records import HEADER
from opsctl.state.site_dir import SiteDir

FIRST_WAIT = timedelta(seconds=30)
_DAMAGES = frozenset({errno.EACCES, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP})
"""Errors of reading that no later try mends."""
MAX_WAIT = timedelta(hours=1)
MAX_RETRY_AFTER = 2 * MAX_WAIT - FIRST_WAIT
"""The longest delay that a channel may ask for."""
KEEP_DELIVERED = timedelta(days=30)
ABANDON_AFTER = timedelta(days=30)
"""Age at which a delivery is abandoned: the message no longer helps, and a dead channel would fill the disk."""
MIN_TRIES_BEFORE_ABANDON = 100
"""Failed tries before a delivery is abandoned: a clock that jumps a month ahead must not abandon messages."""
KEEP_ABANDONED = timedelta(days=365)
MAX_FAILED_THREADS = 2
"""A flush stops after this many failing threads in a row."""
FLUSH_BUDGET_S = 40.0
"""A flush starts no further message after this time."""


class Undelivered(OpsctlError):
    """A channel did not take a message. The text contains no secrets.

    `is_permanent`: a retry fails until a person changes something. `is_ambiguous`: the channel may have taken the
    message nevertheless. `retry_after`: seconds that the channel asks opsctl to wait.
    """

    def __init__(
        self, message: str, *, is_permanent: bool = False, is_ambiguous: bool = False, retry_after: float = 0
    ) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        self.is_ambiguous = is_ambiguous
        self.retry_after = retry_after


_ITEM = TypeAdapter(OutboxItem)

Deliver = Callable[[OutboxItem], str]
"""Sends one item and returns the channel's own name for the message. Raises Undelivered."""

ChooseFallback = Callable[[OutboxItem], str]
"""Returns the channel to use instead for a waiting item; empty while the item keeps waiting."""

WriteJournal = Callable[..., None]
"""Appends to the journal of alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One try to deliver an item."""

    item: OutboxItem
    error: Undelivered | None = None


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox of a site. Its methods raise RunDirError if the directory cannot be written."""

    site: SiteDir
    clock: Clock
    journal: WriteJournal
    other: "Outbox | None" = None
    """The spare outbox, or the main outbox of a spare one: messages delivered there are not delivered again."""
    unrecorded: set[tuple[str, str]] = field(default_factory=set)
    """Names and channels of messages that this process delivered, while neither outbox could record that."""

    def put(self, item: OutboxItem) -> None:
        """Enqueue `item`. An item already enqueued or delivered stays unchanged."""
        if self.knows(item) or self._is_delivered_elsewhere(item):
            return
        self._write(_make(self.queue(item.channel)) / item.name, item)

    def knows(self, item: OutboxItem) -> bool:
        places = (self.delivered(item.channel), self.queue(item.channel), self.lost(item.channel))
        return any((place / item.name).exists() for place in places)

    def has_delivered(self, item: OutboxItem, channel: str = "") -> bool:
        return (self.delivered(channel or item.channel) / item.name).exists()

    def _is_delivered_elsewhere(self, item: OutboxItem) -> bool:
        return (item.name, item.channel) in self.unrecorded or bool(self.other and self.other.has_delivered(item))

    def waiting(self) -> list[OutboxItem]:
        """Return all undelivered items, the oldest first."""
        return _list_all(self.site.alerts.glob("outbox/*/"))

    def abandoned(self) -> list[OutboxItem]:
        """Return the abandoned items, the oldest first."""
        return _list_all(self.site.alerts.glob("undelivered/*/"))

    def queues(self) -> set[str]:
        return {path.parent.name for path in self.site.alerts.glob("outbox/*/*.json")}

    def reference(self, channel: str, message: str) -> str:
        """Return the channel's own name for the message with id `message`; empty if there is none."""
        paths = self.delivered(channel).glob(f"*~{message}.json")
        return next((item.reference for path in paths if (item := _read(path))), "")

    def take_over(self, channel: str) -> None:
        """Move the waiting items of `channel` from the other outbox: one queue keeps the items of a thread in order."""
        if self.other is None or not _items(self.other.queue(channel)):
            return
        queue = _make(self.queue(channel))
        with contextlib.suppress(LeaseBusy), self._lock(channel):
            for item in _items(self.other.queue(channel)):
                if item.is_delivered or not self.knows(item):
                    self._write(queue / item.name, item)
                with contextlib.suppress(OSError):
                    (self.other.queue(channel) / item.name).unlink(missing_ok=True)

    def flush(self, channel: str, deliver: Deliver, choose_fallback: ChooseFallback) -> list[Delivery]:
        """Deliver the waiting items of `channel` if any item is due.

        Does nothing while another process flushes the channel.
        """
        queue = self.queue(channel)
        if not queue.is_dir():
            return []
        deliveries: list[Delivery] = []
        with contextlib.suppress(LeaseBusy), self._lock(channel) as leases:
            # Appended one by one: an error in the middle keeps the deliveries so far.
            for delivery in self._try_items(queue, deliver, leases):
                deliveries.append(delivery)
            for item in _items(queue):
                if not item.fallback and (fallback := choose_fallback(item)):
                    self._try_to_write(queue / item.name, replace(item, fallback=fallback))
        self._prune(channel)
        return deliveries

    def find_expired(self, channel: str, deliveries: Sequence[Delivery]) -> list[OutboxItem]:
        """Return the items to abandon after a flush in which the channel answered nothing."""
        if not deliveries or any(delivery.error is None or delivery.item.retry_not_before for delivery in deliveries):
            return []
        items, now = _items(self.queue(channel)), self.clock.now()
        if max((item.tries for item in items), default=0) < MIN_TRIES_BEFORE_ABANDON:
            return []
        return [item for item in items if now - (item.not_before or item.message.at) > ABANDON_AFTER]

    def abandon(self, channel: str, items: Sequence[OutboxItem]) -> None:
        """Stop trying `items`. The files are kept for a year, for people to read."""
        with contextlib.suppress(LeaseBusy), self._lock(channel):
            for item in items:
                place = self.lost(channel)
                try:
                    make_directories(place)
                    (self.queue(channel) / item.name).replace(place / item.name)
                except FileNotFoundError:  # another process was faster
                    continue
                except OSError as error:
                    raise cannot_write(place, error) from error
                self.journal("given-up", channel=channel, id=item.message.id, attempts=item.tries, why=item.error)

    @contextlib.contextmanager
    def _lock(self, channel: str) -> Iterator[list[HeldLease]]:
        """Take the leases of the channel's queue, here and in the other outbox.

        The order is always the same, so that two processes do not block each other. On a full disk no lease can be
        taken. Raises LeaseBusy, RunDirError.
        """
        mine = self.queue(channel)
        queues = {mine, self.other.queue(channel)} if self.other else {mine}
        leases: list[HeldLease] = []
        with contextlib.ExitStack() as stack:
            for queue in sorted(path for path in queues if path.is_dir()):
                try:
                    leases.append(stack.enter_context(lease(queue, self.clock, wait=0)))
                except RunDirError:
                    if queue == mine:
                        raise
            yield leases

    def _try_items(self, queue: Path, deliver: Deliver, leases: Sequence[HeldLease]) -> Iterator[Delivery]:
        """Try the due items in order until the time budget is used or the channel seems to be down.

        An item waits behind a failed item of the same thread: RESOLVED never arrives before the alert.
        """
        deadline = self.clock.monotonic() + FLUSH_BUDGET_S
        failed_threads: set[str] = set()
        failures_in_a_row = 0
        for item in self._due(queue):
            if failures_in_a_row >= MAX_FAILED_THREADS or self.clock.monotonic() >= deadline:
                return
            if item.message.root in failed_threads:
                continue
            for held_lease in leases:
                held_lease.refresh()
            delivery = self._try(queue / item.name, item, deliver)
            if delivery.error is None:
                failures_in_a_row = 0
            elif not delivery.error.is_permanent:
                failed_threads.add(item.message.root)
                failures_in_a_row += 1
            yield delivery
            if delivery.item.retry_not_before:
                return

    def _due(self, queue: Path) -> list[OutboxItem]:
        """Return all items that may be sent now if at least one is due: one success shows that the channel works."""
        now = self.clock.now()
        items = [item for item in _items(queue) if not self._is_done(queue / item.name, item)]
        if any(item.must_wait(now) for item in items) or not any(item.is_due(now) for item in items):
            return []
        due = [item for item in items if item.is_due(now) or not (item.is_refused or item.is_held_back(now))]
        # Critical threads first, each in its order: RESOLVED never arrives before the alert.
        critical = {item.message.root for item in due if item.message.severity is Severity.CRITICAL}
        return sorted(due, key=lambda item: item.message.root not in critical)

    def _is_done(self, path: Path, item: OutboxItem) -> bool:
        """Archive an item that is already delivered, also by another channel; return whether it is."""
        outboxes = (self, self.other) if self.other else (self,)
        by_fallback = item.fallback and any(outbox.has_delivered(item, item.fallback) for outbox in outboxes)
        is_done = bool(by_fallback or self._is_delivered_elsewhere(item))
        if item.is_delivered:
            self._archive_delivered(path, item, is_written=True)
        elif is_done:
            self._archive(path, replace(item, error=f"delivered by {item.fallback or 'the spare outbox'}"))
        return is_done or item.is_delivered

    def _try(self, path: Path, item: OutboxItem, deliver: Deliver) -> Delivery:
        now = self.clock.now()
        if item.sending:
            self.journal("ambiguous", channel=item.channel, id=item.message.id, why="the last try has no result")
        item = replace(item, tries=item.tries + 1, tried_at=now, sending=now)
        self._try_to_write(path, item)
        try:
            reference = deliver(item)
        except Undelivered as error:
            if error.is_ambiguous:
                self.journal("ambiguous", channel=item.channel, id=item.message.id, why=error.message)
            item = replace(
                item,
                sending=None,
                error=error.message,
                is_refused=error.is_permanent,
                next_try=_next_try(item, error, now),
                retry_not_before=_retry_not_before(error, now),
            )
            self._try_to_write(path, item)
            return Delivery(item=item, error=error)
        item = replace(item, sending=None, error="", retry_not_before=None, reference=reference, is_delivered=True)
        self._archive_delivered(path, item, is_written=self._try_to_write(path, item))
        return Delivery(item=item)

    def _archive_delivered(self, path: Path, item: OutboxItem, *, is_written: bool) -> None:
        self.journal("delivered", channel=item.channel, id=item.message.id, attempts=item.tries)
        self._archive(path, item, is_written=is_written)

    def _archive(self, path: Path, item: OutboxItem, *, is_written: bool = False) -> None:
        # A rename needs no disk space: a delivered message is not sent again, even on a full disk.
        place, key = self.delivered(item.channel), (item.name, item.channel)
        try:
            make_directories(place)
            path.replace(place / path.name)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            if self.other is None or not self.other.note_delivered(item):
                self.unrecorded.add(key)
            self.journal("unfiled", channel=item.channel, id=item.message.id, why=str(error))
            return
        self.unrecorded.discard(key)
        if not is_written:
            self._try_to_write(place / path.name, item)

    def note_delivered(self, item: OutboxItem) -> bool:
        """Record a delivery that the other outbox cannot record; return whether that worked."""
        place = self.delivered(item.channel)
        with contextlib.suppress(OSError):
            make_directories(place)
        return self._try_to_write(place / item.name, item)

    def _prune(self, channel: str) -> None:
        now = self.clock.now()
        for directory, keep in ((self.delivered(channel), KEEP_DELIVERED), (self.lost(channel), KEEP_ABANDONED)):
            oldest = (now - keep).timestamp()
            for path in directory.glob("*.json"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _try_to_write(self, path: Path, item: OutboxItem) -> bool:
        """Write `item`; return whether that worked. A failed write does not stop the delivery."""
        try:
            self._write(path, item)
        except RunDirError:
            return False
        return True

    def _write(self, path: Path, item: OutboxItem) -> None:
        text = json.dumps({**HEADER, **_ITEM.dump_python(item, mode="json")}, ensure_ascii=False, indent=1)
        self.site.write(path, text + "\n")

    def queue(self, channel: str) -> Path:
        return self.site.alerts / "outbox" / channel

    def delivered(self, channel: str) -> Path:
        return self.site.alerts / "delivered" / channel

    def lost(self, channel: str) -> Path:
        return self.site.alerts / "undelivered" / channel


def _make(directory: Path) -> Path:
    """Return the directory, which exists now. Raises RunDirError."""
    with writing(directory):
        make_directories(directory)
    return directory


def _list_all(directories: Iterable[Path]) -> list[OutboxItem]:
    return sorted(chain.from_iterable(map(_items, directories)), key=lambda item: item.name)


def _items(queue: Path) -> list[OutboxItem]:
    """Return the items in order. Other files are ignored."""
    return [item for path in sorted(queue.glob("*.json")) if (item := _read(path)) and item.name == path.name]


def _read(path: Path) -> OutboxItem | None:
    try:
        fields = parse_json(read_bounded(path, MAX_RECORD_BYTES))
        rename_severity(fields.get("message") if isinstance(fields, dict) else None)
        return _ITEM.validate_python(fields)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", errno.EINVAL) in _DAMAGES:
            set_aside(path)
        return None


def _next_try(item: OutboxItem, error: Undelivered, now: datetime) -> datetime:
    """Return the time of the next try: the wait doubles up to MAX_WAIT; a refused item waits MAX_WAIT."""
    wait = MAX_WAIT if error.is_permanent else min(FIRST_WAIT * 2 ** min(item.tries - 1, 10), MAX_WAIT)
    return max(now + wait, _retry_not_before(error, now) or now)


def _retry_not_before(error: Undelivered, now: datetime) -> datetime | None:
    """Return the end of the delay that the channel asked for, at most MAX_RETRY_AFTER ahead."""
    seconds = min(error.retry_after, MAX_RETRY_AFTER.total_seconds())
    return now + timedelta(seconds=seconds) if seconds else None
