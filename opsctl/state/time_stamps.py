"""Time stamps that another machine's clock wrote. A stamp from the future counts as now. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

CLOCK_TOLERANCE = timedelta(minutes=2)
"""Clocks of nodes differ by this much. A stamp that is further ahead comes from a broken clock."""


def parse_past(text: str, now: datetime) -> datetime:
    """Return the time in `text`, at most `now`. Raises ValueError, TypeError."""
    return min(datetime.fromisoformat(text), now)


def is_from_future(stamp: datetime, now: datetime) -> bool:
    return stamp - now > CLOCK_TOLERANCE


def date_by_first_sight(stamp: datetime, now: datetime, remembered: Sequence[str]) -> tuple[datetime, tuple[str, ...]]:
    """Return when the stamp was set by this machine's clock, and what to pass as `remembered` next time.

    A stamp from the future counts from the moment at which this machine first read the stamp. Counting the stamp as
    now at every reading would keep its writer alive for ever.
    """
    match remembered:
        case [str(text), str(sight)] if text == stamp.isoformat():
            return min(stamp, parse_past(sight, now)), (text, sight)
    return min(stamp, now), (stamp.isoformat(), now.isoformat()) if stamp > now else ()
