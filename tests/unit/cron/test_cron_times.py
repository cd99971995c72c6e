"""Five-field times as in crontab(5), also in the nights in which clocks change."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.cron.crontab import parse_when, weekdays

BERLIN = ZoneInfo("Europe/Berlin")


def times(text: str, zone: ZoneInfo, begin: str, count: int) -> list[str]:
    """Return the first `count` times after `begin` (UTC), on the zone's clock."""
    when = parse_when(text, zone)
    moment = datetime.fromisoformat(begin).replace(tzinfo=UTC)
    shown = []
    for _ in range(count):
        next_time = when.after(moment)
        assert next_time is not None
        moment = next_time.astimezone(UTC)
        shown.append(f"{next_time:%m-%d %H:%M%z}")
    return shown


def test_next_time_is_strictly_later() -> None:
    when = parse_when("0 12 * * *", ZoneInfo("UTC"))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert when.after(noon) == noon + timedelta(days=1)
    assert when.after(noon - timedelta(seconds=1)) == noon


def test_time_in_a_skipped_hour_is_moved() -> None:
    assert times("30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == ["03-29 02:30+0100", "03-30 02:30+0200"]
    when = parse_when("30 2 * * *", BERLIN).after(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert when is not None
    assert when.astimezone(UTC) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC), "03:30 of the new time"


def test_daily_time_in_a_repeated_hour_runs_once() -> None:
    assert times("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]


def test_hourly_time_runs_in_both_repeated_hours() -> None:
    expected = ["10-25 01:00+0200", "10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]
    assert times("0 * * * *", BERLIN, "2026-10-24T22:30", 4) == expected


def test_ten_minute_interval_ignores_clock_changes() -> None:
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


def test_day_matches_either_restricted_field() -> None:
    assert times("0 0 13 * 5", ZoneInfo("UTC"), "2026-03-06T12:00", 3) == [
        "03-13 00:00+0000",
        "03-20 00:00+0000",
        "03-27 00:00+0000",
    ]
    assert times("0 0 10 * 5", ZoneInfo("UTC"), "2026-03-06T12:00", 2) == ["03-10 00:00+0000", "03-13 00:00+0000"]


def test_impossible_day_has_no_next_time() -> None:
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
def test_invalid_time_is_reported(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_when(text, BERLIN)
    assert str(caught.value) == message


NUMBERS = st.one_of(st.just("*"), st.integers(0, 23).map(str), st.integers(1, 23).map("*/{}".format))


@settings(max_examples=60, deadline=None)
@given(minute=NUMBERS, hour=NUMBERS, weekday=st.integers(0, 7), hours=st.integers(0, 20_000))
def test_next_time_is_the_first_matching_minute(minute: str, hour: str, weekday: int, hours: int) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours, minutes=hours % 60)
    moment = parse_when(f"{minute} {hour} * * {weekday}", ZoneInfo("UTC")).after(begin)
    candidate = begin + timedelta(minutes=1)
    while not (
        fits(minute, candidate.minute) and fits(hour, candidate.hour) and (candidate.weekday() + 1) % 7 == weekday % 7
    ):
        candidate += timedelta(minutes=1)
    assert moment == candidate


def fits(field: str, value: int) -> bool:
    if field == "*":
        return True
    return value % int(field[2:]) == 0 if field.startswith("*/") else value == int(field)


@given(text=st.text(max_size=30))
def test_any_text_raises_only_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_when(text, BERLIN)
