"""One message for one channel, as stored in the outbox, and when to try it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.alerts.message import Message
from opsctl.state.records import is_from_future


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxItem:
    message: Message
    channel: str
    number: int
    """Number of the batch: items are delivered in this order."""
    not_before: datetime | None = None
    """End of the quiet hours that delay the item."""
    tries: int = 0
    tried_at: datetime | None = None
    next_try: datetime | None = None
    retry_not_before: datetime | None = None
    """The channel asked for no message at all before this time."""
    is_refused: bool = False
    """The channel refused the message permanently; other messages do not wait for this one."""
    sending: datetime | None = None
    """Start of a try with unknown result."""
    error: str = ""
    fallback: str = ""
    """The channel that received the message instead."""
    reference: str = ""
    """The channel's own name for the delivered message."""
    is_delivered: bool = False
    """The channel took the message; the file may still lie in the queue."""

    @property
    def name(self) -> str:
        return f"{self.number:08d}~{self.message.id}.json"

    def is_held_back(self, now: datetime) -> bool:
        """Return whether quiet hours delay the item. An end more than a day ahead comes from a wrong clock."""
        return self.not_before is not None and now < self.not_before < now + timedelta(hours=25)

    def must_wait(self, now: datetime) -> bool:
        """Return whether the channel's requested delay lasts."""
        return self.retry_not_before is not None and now < self.retry_not_before and not self._has_wrong_times(now)

    def is_due(self, now: datetime) -> bool:
        if self.is_held_back(now):
            return False
        return self.next_try is None or now >= self.next_try or self._has_wrong_times(now)

    def _has_wrong_times(self, now: datetime) -> bool:
        """Return whether a clock that was ahead wrote the times of the last try, which then delay nothing."""
        return self.tried_at is None or is_from_future(self.tried_at, now)
