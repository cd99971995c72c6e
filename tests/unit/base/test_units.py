"""Durations, sizes, shares, counts and times: one grammar in, one form out."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.base.units import (
    format_count,
    format_duration,
    format_percent,
    format_size,
    parse_duration,
    parse_slurm_minutes,
    parse_time,
)
from tests.support.cases import read_cases

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(*read_cases(__file__, "duration_is_read"))
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "0s", "soon", "5", "30m1h", "-5m", "1.5h", "99999999999999w", "٣m", "1h 30m"])
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration, such as 90s, 10m, 1h30m or 2d"):
        parse_duration(text)


@pytest.mark.parametrize(*read_cases(__file__, "duration_is_shown_in_two_units"))
def test_duration_is_shown_in_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, 10**8))
def test_shown_duration_can_be_typed(seconds: int) -> None:
    shown = parse_duration(format_duration(seconds).replace(" ", "")).total_seconds()
    assert abs(shown - seconds) <= max(60, seconds / 20)


@pytest.mark.parametrize(*read_cases(__file__, "slurm_rounds_limits_up"))
def test_slurm_rounds_limits_up(text: str, minutes: int | None) -> None:
    assert parse_slurm_minutes(text) == minutes


def test_unknown_share_is_no_zero() -> None:
    assert [format_percent(share) for share in (None, 0.0, 0.0001, 0.973)] == ["unknown", "0.0%", "< 0.1%", "97.3%"]


def test_sizes_and_counts_have_three_digits() -> None:
    assert [format_size(size) for size in (0, 1023, 1536, 2.5 * 1024**4)] == ["0 B", "1023 B", "1.5 KiB", "2.5 TiB"]


def test_size_just_below_the_next_unit_has_no_exponent() -> None:
    assert format_size(1008 * 1024**3) == "1008 GiB"
    assert [format_count(number) for number in (999, 36900, 1.234e9, 3.66e11)] == ["999", "36.9k", "1.23B", "366B"]


def test_time_is_a_date_or_how_long_ago() -> None:
    assert parse_time("3d", NOW) == NOW - timedelta(days=3)
    assert parse_time("2026-02-28T12:00:00+00:00", NOW) == NOW - timedelta(days=1)
    with pytest.raises(ValueError, match="'never' is not a time"):
        parse_time("never", NOW)
