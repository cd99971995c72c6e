"""How fresh the findings of the watchdogs are: a fresh page over a dead watch proves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opsctl.app import App
from opsctl.dash.show_times import format_age
from opsctl.state.files import MAX_STATE_BYTES, read_json

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
        entries = read_json(app.site_dir.alerts / "ledger.json", MAX_STATE_BYTES)["entries"].values()
        last = max((datetime.fromisoformat(str(entry["checked_at"])) for entry in entries), default=None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        last = None
    return WatchAge(last=last, now=app.clock.now())
