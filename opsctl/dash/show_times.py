"""Times as the pages show them: ages in one unit, moments in the time zone of `now`. Pure."""

from datetime import datetime, timedelta


def format_age(seconds: float | timedelta) -> str:
    """Return a duration in one unit, for a glance: `40 s`, `12 min`, `5 h`, `3 d`."""
    amount = max(0.0, seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    for size, unit in ((172800, "d"), (7200, "h"), (90, "min")):
        if amount >= size:
            return f"{round(amount / {'d': 86400, 'h': 3600, 'min': 60}[unit])} {unit}"
    return f"{round(amount)} s"


def format_ago(now: datetime, at: datetime) -> str:
    """Return the age and the moment: `4 min ago (17:23:05 UTC)`."""
    return f"{format_age(now - at)} ago ({format_clock(now, at)})"


def format_moment(now: datetime, at: datetime) -> str:
    """Return a moment to the second: `2026-03-01 12:00:07 UTC`."""
    return f"{at.astimezone(now.tzinfo):%Y-%m-%d %H:%M:%S %Z}"


def format_clock(now: datetime, at: datetime) -> str:
    """Return a past moment as short as its age allows: `17:23:05 UTC`, `21 Nov 17:23 UTC`, `21 Nov 2025`."""
    at = at.astimezone(now.tzinfo)
    if at.date() == now.date():
        return f"{at:%H:%M:%S %Z}"
    if abs(now - at) < timedelta(days=300):
        return f"{at.day} {at:%b %H:%M %Z}"
    return f"{at.day} {at:%b %Y}"


def format_day_time(now: datetime, at: datetime) -> str:
    """Return a coming moment as short as its distance allows: `14:05 UTC`, `Tue 14:05 UTC`, `24 Nov`, `Mar 2027`."""
    at = at.astimezone(now.tzinfo)
    if at.date() == now.date():
        return f"{at:%H:%M %Z}"
    if at - now < timedelta(days=6):
        return f"{at:%a %H:%M %Z}"
    return f"{at.day} {at:%b}" if at - now < timedelta(days=300) else f"{at:%b %Y}"
