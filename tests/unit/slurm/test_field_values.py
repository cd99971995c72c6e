from datetime import UTC, datetime

import pytest

from opsctl.base.units import parse_slurm_minutes
from opsctl.slurm.field_values import parse_exit_code, parse_tasks, parse_text, parse_time
from tests.support.cases import read_cases


@pytest.mark.parametrize(*read_cases(__file__, "array_indices_are_read", tasks=tuple))
def test_array_indices_are_read(word, tasks):
    assert parse_tasks(word) == tasks


@pytest.mark.parametrize("word", ["1,3,5,...", "1,3,5,x-y", "1,3,5,9-7", "1,3,5,6-4000001", "1,3,5,1-9:0"])
def test_invalid_indices_are_left_out(word):
    assert parse_tasks(word) == (1, 3, 5)


def test_time_is_in_utc():
    assert parse_time("1795219708") == datetime(2026, 11, 21, 0, 8, 28, tzinfo=UTC)


@pytest.mark.parametrize("word", ["N/A", "Unknown", "None", "NONE", "", "2026-11-21T00:08:28", "-1", "²", "9" * 30])
def test_invalid_time_is_none(word):
    assert parse_time(word) is None


@pytest.mark.parametrize(*read_cases(__file__, "time_limit_is_in_minutes"))
def test_time_limit_is_in_minutes(word, minutes):
    assert parse_slurm_minutes(word) == minutes


@pytest.mark.parametrize(("word", "code"), [("0", "0:0"), ("1792", "7:0"), ("15", "0:15"), ("7:0", "7:0"), ("", "")])
def test_exit_code_is_code_and_signal(word, code):
    assert parse_exit_code(word) == code


@pytest.mark.parametrize("word", ["(null)", "N/A", "None assigned", "none", " "])
def test_placeholders_are_empty(word):
    assert parse_text(word) == ""
