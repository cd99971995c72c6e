"""Five-field times: what crontab(5) means by them, also in the nights in which clocks are changed."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.cron.cron_times import parse_when, weekdays

BERLIN = ZoneInfo("Europe/Berlin")


def times(text: str, zone: ZoneInfo, begin: str, count: int) -> list[str]:
    """The first times after `begin` (UTC), on the zone's clock."""
    when, moment, found = parse_when(text, zone), datetime.fromisoformat(begin).replace(tzinfo=UTC), []
    for _ in range(count):
        next_time = when.after(moment)
        assert next_time is not None
        moment = next_time.astimezone(UTC)
        found.append(f"{next_time:%m-%d %H:%M%z}")
    return found


def test_a_time_is_strictly_after() -> None:
    when = parse_when("0 12 * * *", ZoneInfo("UTC"))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert when.after(noon) == noon + timedelta(days=1)
    assert when.after(noon - timedelta(seconds=1)) == noon


def test_an_hour_that_is_skipped_moves_what_it_holds_and_loses_nothing() -> None:
    assert times("30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == ["03-29 02:30+0100", "03-30 02:30+0200"]
    when = parse_when("30 2 * * *", BERLIN).after(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert when is not None
    assert when.astimezone(UTC) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC), "03:30 of the new time"


def test_an_hour_that_comes_twice_holds_a_daily_time_once() -> None:
    assert times("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]


def test_what_runs_every_hour_runs_in_both_of_an_hour_that_comes_twice() -> None:
    expected = ["10-25 01:00+0200", "10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]
    assert times("0 * * * *", BERLIN, "2026-10-24T22:30", 4) == expected


def test_every_ten_minutes_are_ten_minutes_whatever_the_clocks_do() -> None:
    when = parse_when("*/10 * * * *", BERLIN)
    for night in ("2026-03-28T23:05", "2026-10-24T22:05"):
        moment = datetime.fromisoformat(night).replace(tzinfo=UTC)
        for _ in range(24):
            later = when.after(moment)
            assert later is not None
            assert (later - moment.replace(minute=moment.minute // 10 * 10)).total_seconds() == 600
            moment = later.astimezone(UTC)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("0", "sun"),
        ("7", "sun"),
        ("1-5", "mon,tue,wed,thu,fri"),
        ("fri-7", "sun,fri,sat"),
        ("*/2", "sun,tue,thu,sat"),
        ("sat-sun", "sun,sat"),
        ("MON", "mon"),
        ("1,3-4", "mon,wed,thu"),
        ("0-7", "sun,mon,tue,wed,thu,fri,sat"),
    ],
)
def test_days_of_the_week_count_from_sunday(field: str, expected: str) -> None:
    assert weekdays(field) == expected


def test_a_day_fits_if_either_of_two_restricted_fields_does() -> None:
    found = times("0 0 13 * 5", ZoneInfo("UTC"), "2026-03-06T12:00", 3)
    assert found == ["03-13 00:00+0000", "03-20 00:00+0000", "03-27 00:00+0000"]
    assert times("0 0 10 * 5", ZoneInfo("UTC"), "2026-03-06T12:00", 2) == ["03-10 00:00+0000", "03-13 00:00+0000"]


def test_a_day_that_never_comes_is_never() -> None:
    assert parse_when("0 0 30 2 *", BERLIN).after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* * * *", "'* * * *' has 4 fields, needs 5: minute, hour, day of month, month, day of week"),
        (
            "@reboot",
            "'@reboot' is unknown; valid macros: @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually",
        ),
        ("* * * * 8", "'8' is not a day of the week: 0 to 7 or sun to sat, 1-5, */2"),
        ("* * * * foo", "'foo' is not a day of the week: sun, mon, tue, wed, thu, fri or sat"),
        ("* * * * 5-1", "'5-1': weeks start on Sunday, so the range goes backwards"),
        ("61 * * * *", "Error validating expression '61': the last value (61) is higher than the maximum value (59)"),
        ("* * * hi *", 'Invalid month name "hi"'),
    ],
)
def test_what_makes_no_sense_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_when(text, BERLIN)
    assert str(caught.value) == message


NUMBERS = st.one_of(st.just("*"), st.integers(0, 23).map(str), st.integers(1, 23).map("*/{}".format))


@settings(max_examples=60, deadline=None)
@given(minute=NUMBERS, hour=NUMBERS, weekday=st.integers(0, 7), hours=st.integers(0, 20_000))
def test_the_next_time_is_the_first_minute_that_fits(minute: str, hour: str, weekday: int, hours: int) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours, minutes=hours % 60)
    moment = parse_when(f"{minute} {hour} * * {weekday}", ZoneInfo("UTC")).after(begin)
    each = begin + timedelta(minutes=1)
    while not (fits(minute, each.minute) and fits(hour, each.hour) and (each.weekday() + 1) % 7 == weekday % 7):
        each += timedelta(minutes=1)
    assert moment == each


def fits(field: str, value: int) -> bool:
    if field == "*":
        return True
    return value % int(field[2:]) == 0 if field.startswith("*/") else value == int(field)


@given(text=st.text(max_size=30))
def test_no_text_does_worse_than_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_when(text, BERLIN)
