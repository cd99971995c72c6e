"""How fresh the findings of the watchdogs are: a fresh page over a dead watch proves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.app import App
from opsctl.base.errors import RunDirError
from opsctl.dash.show_times import format_age

LATE = timedelta(minutes=30)
"""A watch without a finding for this long is late, whatever the tick of cron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAge:
    """The newest check of any watchdog."""

    last: datetime | None
    """None if no watch cycle has recorded anything."""
    now: datetime

    @property
    def is_late(self) -> bool:
        return self.last is None or self.now - self.last > LATE

    @property
    def text(self) -> str:
        return f"last watch cycle {format_age(self.now - self.last)} ago" if self.last else "no watch cycle yet"


def read_watch_age(app: App) -> WatchAge:
    """Return the time of the newest check in the ledger. An unreadable ledger proves no watch."""
    try:
        last = max((entry.checked_at for entry in app.alert_ledger.read().entries.values()), default=None)
    except RunDirError:
        last = None
    return WatchAge(last=last, now=app.clock.now())
