"""Five-field crontab times, evaluated by APScheduler's triggers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from apscheduler.triggers.cron import CronTrigger

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DAY = re.compile(r"(?:\*|([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3}))?)(?:/([1-9]\d?))?", re.ASCII | re.IGNORECASE)
MAX_CHARS = 400
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class When:
    """The times of one crontab line."""

    text: str
    triggers: tuple[CronTrigger, ...]
    """The times are the union of the triggers."""
    is_daily: bool
    """Whether hours are given: then a repeated hour at the end of summer time counts once."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment`; None if there is none, such as for 30 February."""
        times = [self._next(trigger, moment) for trigger in self.triggers]
        return min((time for time in times if time), default=None)

    def _next(self, trigger: CronTrigger, moment: datetime) -> datetime | None:
        # In UTC: arithmetic on local times loses which of two equal hours is meant.
        time: datetime | None = trigger.get_next_fire_time(None, moment.astimezone(UTC) + INSTANT)
        while time and time.fold and self.is_daily:
            time = trigger.get_next_fire_time(None, time.astimezone(UTC) + INSTANT)
        return time


def parse_when(text: str, zone: tzinfo) -> When:
    """Parse five fields of crontab(5) or a macro such as @daily. Raises ValueError.

    As in crontab(5), if both day of month and day of week are restricted, one matching field is enough.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"{text!r:.80}… is longer than {MAX_CHARS} characters")
    if text.startswith("@") and text not in MACROS:
        raise ValueError(f"{text!r:.80} is unknown; valid macros: {', '.join(MACROS)}")
    fields = MACROS.get(text, text).split()
    if len(fields) != 5:
        raise ValueError(
            f"{text!r:.80} has {len(fields)} fields, needs 5: minute, hour, day of month, month, day of week"
        )
    minute, hour, day, month, weekday = fields
    either = not (day.startswith("*") or weekday.startswith("*"))
    weekday = weekdays(weekday)
    choices: Sequence[tuple[str, str]] = [(day, "*"), ("*", weekday)] if either else [(day, weekday)]
    triggers = tuple(CronTrigger.from_crontab(f"{minute} {hour} {d} {month} {w}", timezone=zone) for d, w in choices)
    return When(text=text, triggers=triggers, is_daily=not hour.startswith("*"))


def weekdays(field: str) -> str:
    """Return crontab's days of the week as names: APScheduler counts from Monday, crontab from Sunday."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.split(","):
        days |= _span(part)
    return ",".join(name for number, name in enumerate(WEEKDAYS) if number in days)


def _span(part: str) -> set[int]:
    match = DAY.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r:.40} is not a day of the week: 0 to 7 or sun to sat, 1-5, */2")
    first, last, step = match.groups()
    low = _number(first) if first else 0
    high = 6 if first is None or step else low
    if last:
        high = _number(last) or 7
    if high < low:
        raise ValueError(f"{part!r:.40}: weeks start on Sunday, so the range goes backwards")
    return {number % 7 for number in range(low, high + 1, int(step or 1))}


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    if word.lower() not in WEEKDAYS:
        raise ValueError(f"{word!r:.40} is not a day of the week: sun, mon, tue, wed, thu, fri or sat")
    return WEEKDAYS.index(word.lower())
