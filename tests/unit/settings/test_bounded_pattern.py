"""Patterns of users. `pytest tests/unit/settings/test_bounded_pattern.py`"""

import re
import time

import pytest

from opsctl.settings.bounded_pattern import MAX_LINE_BYTES, compile_bounded
from opsctl.settings.loader import check_step_pattern
from tests.support.cases import read_cases, read_table

MAX_SEARCH_S = 2.0
"""CPU time for one hostile line."""


@pytest.mark.parametrize(*read_cases(__file__, "searched"))
def test_pattern_is_searched(pattern: str, text: str, groups: dict[str, str] | None) -> None:
    assert compile_bounded(pattern).search(text) == groups


def test_surrogate_of_a_line_is_searched_as_another_letter() -> None:
    assert compile_bounded(r"é=(?P<step>\d+) (?P<total>.)").search("é=3 \ud800") == {"step": "3", "total": "?"}


def test_pattern_with_a_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        compile_bounded("\ud800(?P<step>x)")


@pytest.mark.parametrize(*read_cases(__file__, "refused"))
def test_expression_that_re2_lacks_is_refused_with_what_to_write(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        compile_bounded(pattern)


ACCEPTED = read_table(__file__, "accepted")
"""Python's `re` would search some of them for hours."""


@pytest.mark.parametrize("pattern", ACCEPTED)
@pytest.mark.parametrize("text", ["s", "1", " ", "step=1 loss=1 ", "a1", "\udcff"])
def test_hostile_line_takes_bounded_time(pattern: str, text: str) -> None:
    compiled = compile_bounded(pattern)
    began = time.process_time()
    compiled.search((text * MAX_LINE_BYTES * 8)[: MAX_LINE_BYTES * 8])
    assert time.process_time() - began < MAX_SEARCH_S


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "not a regular expression of RE2: missing )"),
        (r"loss=(?P<loss>\d+)", "no group `step`"),
        (r"(?P<step>\d+) (?P<speed>\d+)", "unknown group speed; known: step, total"),
        ("x" * 2000, "more than 1000 characters"),
    ],
)
def test_useless_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        check_step_pattern(pattern)
