"""Five-field times as in crontab(5), also in the nights in which clocks change."""

import contextlib
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.cron.crontab import parse_when, weekdays

BERLIN = ZoneInfo("Europe/Berlin")
CASES = tomllib.loads((Path(__file__).parents[2] / "corpus" / "cron" / "times.toml").read_text())


@pytest.mark.parametrize("text", CASES["next"])
def test_next_times_on_the_clock_of_the_zone(text: str) -> None:
    for begin, expected in CASES["next"][text].items():
        moment = datetime.fromisoformat(begin).replace(tzinfo=UTC)
        for shown in expected:
            next_time = parse_when(text, BERLIN).after(moment)
            assert next_time is not None
            assert f"{next_time:%m-%d %H:%M%z}" == shown
            moment = next_time.astimezone(UTC)


def test_next_time_is_strictly_later() -> None:
    when = parse_when("0 12 * * *", ZoneInfo("UTC"))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert when.after(noon) == noon + timedelta(days=1)
    assert when.after(noon - timedelta(seconds=1)) == noon


def test_time_in_a_skipped_hour_is_moved() -> None:
    when = parse_when("30 2 * * *", BERLIN).after(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert when is not None
    assert when.astimezone(UTC) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC), "03:30 of the new time"


def test_ten_minute_interval_ignores_clock_changes() -> None:
    when = parse_when("*/10 * * * *", BERLIN)
    for night in ("2026-03-28T23:05", "2026-10-24T22:05"):
        moment = datetime.fromisoformat(night).replace(tzinfo=UTC)
        for _ in range(24):
            later = when.after(moment)
            assert later is not None
            assert (later - moment.replace(minute=moment.minute // 10 * 10)).total_seconds() == 600
            moment = later.astimezone(UTC)


@pytest.mark.parametrize(("field", "expected"), CASES["weekdays"].items())
def test_days_of_the_week_count_from_sunday(field: str, expected: str) -> None:
    assert weekdays(field) == expected


def test_impossible_day_has_no_next_time() -> None:
    assert parse_when("0 0 30 2 *", BERLIN).after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(("text", "message"), CASES["refused"].items())
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
