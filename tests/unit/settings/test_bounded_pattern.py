"""Patterns of users. `pytest tests/unit/settings/test_bounded_pattern.py`"""

from __future__ import annotations

import time

import pytest

from opsctl.settings.bounded_pattern import MAX_LINE_CHARS, compile_bounded
from opsctl.settings.progress import check_step_pattern

MAX_SEARCH_S = 2.0
"""CPU time for one hostile line."""


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        (r"step=(?P<step>\d+)", "at step=12.", {"step": "12"}),
        (r".*step=(?P<step>\d+).*loss=(?P<loss>\S+)", "a step=3 lr=1 loss=2.5 b", {"step": "3", "loss": "2.5"}),
        (r"step[= ]+(?P<step>\d+)/(?P<total>\d+)", "step = 3/9", {"step": "3", "total": "9"}),
        (r"^\[(?P<step>\d+)\] .+? dt (?P<step_ms>[\d.]+)ms", "[4] x dt 5.5ms", {"step": "4", "step_ms": "5.5"}),
        (r"(?:step|iter) (?P<step>\d+)", "iter 8", {"step": "8"}),
        (r"step (?P<step>\d+)(?:, loss (?P<loss>[\d.]+))?", "step 8", {"step": "8"}),
        (r"step=(?P<step>\d+)", "no steps", None),
    ],
)
def test_pattern_is_searched(pattern: str, text: str, groups: dict[str, str] | None) -> None:
    assert compile_bounded(pattern).search(text) == groups


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+step=(?P<step>\d+)",
        r"(?:a|a)*step=(?P<step>\d+)",
        r"(?:\w+\s?)*step=(?P<step>\d+)",
        r"\w*\w*\w*x(?P<step>\d+)",
        r"(?P<a>\w)(?P=a)(?P<step>\d+)",
        r"(.*)(.*)(.*)(.*)=(?P<step>\d+)",
        r"(?:x.*y.*z.*)step=(?P<step>\d+)",
        r"((a{1,9}){1,9}){1,9}(?P<step>\d+)",
    ],
)
def test_slow_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="could take hours"):
        compile_bounded(pattern)


ACCEPTED = [
    r".*step=(?P<step>\d+).*loss=(?P<loss>\S+).*lr=(?P<lr>\S+).*",
    r"\w*step=(?P<step>\d+)",
    r"(?P<step>\d+)\s*of\s*(?P<total>\d+)\s*x",
    r"(.*)step=(?P<step>\d+)",
    r"\s*\d+\s*\d+\s*step(?P<step>\d+)",
]


@pytest.mark.parametrize("pattern", ACCEPTED)
@pytest.mark.parametrize("text", ["s", "1", " ", "step=", "step=1 loss=1 ", "loss=", "1 of 1 ", "1 ", "a1"])
def test_hostile_line_takes_bounded_time(pattern: str, text: str) -> None:
    compiled = compile_bounded(pattern)
    began = time.process_time()
    compiled.search((text * MAX_LINE_CHARS * 8)[: MAX_LINE_CHARS * 8])
    assert time.process_time() - began < MAX_SEARCH_S


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "not a regular expression"),
        (r"loss=(?P<loss>\d+)", "no group `step`"),
        (r"(?P<step>\d+) (?P<speed>\d+)", "unknown group speed; known: step, total"),
        ("x" * 2000, "more than 1000 characters"),
    ],
)
def test_useless_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        check_step_pattern(pattern)
