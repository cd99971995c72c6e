"""The spans of any input tile the window. `pytest tests/unit/report`"""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, SpanEnd, account_time
from opsctl.telemetry.progress.log_summary import LogPart, LogStep
from tests.support.cases import read_cases

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 5000), st.sampled_from([math.nan, math.inf, 0.0, -1.0])
)
TIMES = st.floats(-1e4, 1e4)
LINES = st.builds(
    LogStep,
    step=st.integers(0, 10**15 - 1) | st.integers(0, 50),
    step_s=NUMBERS,
    earliest=NUMBERS,
    latest=NUMBERS,
    batch=st.integers(0, 10),
    stall_s=NUMBERS,
    evaluated=st.integers(0, 1),
)


@st.composite
def parts(draw: st.DrawFn) -> LogPart:
    part = LogPart(
        first_stamp=draw(NUMBERS), last_stamp=draw(NUMBERS), stall_s=draw(NUMBERS), has_fractions=draw(st.booleans())
    )
    for make_step in draw(st.lists(LINES, max_size=8)):
        part.add(make_step)
    return part


ATTEMPTS = st.builds(
    AttemptSpan,
    begin=TIMES,
    end=TIMES,
    ending=st.sampled_from(SpanEnd),
    log=parts(),
    nodes=st.integers(0, 2),
    last_output=NUMBERS,
    is_truncated=st.booleans(),
)
WAITS = st.builds(IdleSpan, begin=TIMES, end=TIMES, bucket=st.sampled_from(Bucket))


@settings(max_examples=100, deadline=None)
@given(
    attempts=st.lists(ATTEMPTS, max_size=4), waits=st.lists(WAITS, max_size=4), begin=TIMES, length=st.floats(0, 1e5)
)
def test_spans_tile_the_window(attempts: list[AttemptSpan], waits: list[IdleSpan], begin: float, length: float) -> None:
    end = begin + length
    spans = list(account_time(attempts, waits, begin=begin, end=end))
    assert all(span.end > span.begin for span in spans)
    assert all(earlier.end == later.begin for earlier, later in pairwise(spans))
    assert (spans[0].begin, spans[-1].end) == (begin, end) if spans else end == begin
    assert math.fsum(span.end - span.begin for span in spans) == pytest.approx(length)


def make_attempt(*lines: LogStep, end: float = 1000.0, ending: SpanEnd = SpanEnd.LEFT, **more: object) -> AttemptSpan:
    part = LogPart()
    for make_step in lines:
        part.add(make_step)
        if math.isnan(part.first_stamp):
            part.first_stamp = make_step.earliest
    return AttemptSpan(begin=0.0, end=end, ending=ending, log=part, **more)


def make_step(step: int, at: float = math.nan, seconds: float = 10.0, **more: float) -> LogStep:
    fields = {"batch": 16, "stall_s": math.nan, "evaluated": 0, "earliest": at, "latest": at, **more}
    return LogStep(step=step, step_s=seconds, **fields)


def sum_buckets(*attempts: AttemptSpan, end: float | None = None) -> dict[str, float]:
    total: dict[str, float] = {}
    for span in account_time(attempts, [], begin=0.0, end=attempts[-1].end if end is None else end):
        total[span.bucket.value] = total.get(span.bucket.value, 0.0) + span.end - span.begin
    return {name: round(seconds, 6) for name, seconds in total.items()}


STEADY = [make_step(step, 100 + 10 * step) for step in range(1, 11)]


def test_attempt_without_tail_is_start_up_and_training() -> None:
    assert sum_buckets(make_attempt(*STEADY, end=200)) == {"start-up": 100, "training": 100}


@pytest.mark.parametrize(*read_cases(__file__, "tail_depends_on_the_ending", ending=SpanEnd))
def test_tail_depends_on_the_ending(ending: SpanEnd, after: float, bucket: str) -> None:
    floats = sum_buckets(make_attempt(*STEADY, end=200 + after, ending=ending))
    assert floats == {"start-up": 100, "training": 100, bucket: after}


def test_save_inside_the_next_step_is_a_checkpoint() -> None:
    slow = make_step(11, 250, seconds=50.0, stall_s=math.inf)
    assert sum_buckets(make_attempt(*STEADY, slow, end=250)) == {"start-up": 100, "training": 110, "checkpoints": 40}


def test_long_step_beyond_a_known_save_is_slow() -> None:
    slow = make_step(11, 250, seconds=50.0, stall_s=25.0)
    assert sum_buckets(make_attempt(*STEADY, slow, end=250)) == {
        "start-up": 100,
        "training": 110,
        "checkpoints": 25,
        "slow steps": 15,
    }


def test_evaluation_between_steps() -> None:
    later = make_step(11, 260, evaluated=1)
    assert sum_buckets(make_attempt(*STEADY, later, end=260)) == {"start-up": 100, "training": 110, "evaluation": 50}


def test_whole_second_stamps_make_no_slow_steps() -> None:
    steps = [make_step(n, math.floor(100 + 3.4 * n), seconds=3.4) for n in range(1, 101)]
    attempt = make_attempt(*steps, end=440)
    attempt.log.has_fractions = False
    assert sum_buckets(attempt)["training"] == pytest.approx(340, abs=1)


def test_clock_set_back_an_hour_continues() -> None:
    steps = [make_step(n, 100 + 10 * n + 50 * (n > 8) - 3600 * (n > 5), evaluated=int(n == 9)) for n in range(1, 11)]
    floats = sum_buckets(make_attempt(*steps, end=260, ending=SpanEnd.BROKE))
    assert floats == {"start-up": 100, "training": 100, "evaluation": 50, "hang until noticed": 10}


def test_log_in_another_time_zone() -> None:
    steps = [make_step(n, 100 + 10 * n + 7200) for n in range(1, 11)]
    assert sum_buckets(make_attempt(*steps, end=200)) == {"start-up": 100, "training": 100}


def test_date_in_a_text_is_ignored() -> None:
    steps = [make_step(1, 110), make_step(2, math.nan, earliest=-5e8, latest=-5e8), make_step(3, 130)]
    assert sum_buckets(make_attempt(*steps, end=130)) == {"start-up": 100, "training": 30}


def test_slow_steps_compare_equal_node_counts() -> None:
    slow = [make_step(n, 1100 + 15 * (n - 10), seconds=15.0) for n in range(11, 15)]
    first, second = make_attempt(*STEADY, end=200, nodes=4), make_attempt(*slow, end=160, nodes=4)
    moved = AttemptSpan(begin=1000.0, end=1160.0, ending=SpanEnd.LEFT, log=second.log, nodes=4)
    assert sum_buckets(first, moved, end=1160)["slow steps"] == pytest.approx(20)
    moved = AttemptSpan(begin=1000.0, end=1160.0, ending=SpanEnd.LEFT, log=second.log, nodes=2)
    assert "slow steps" not in sum_buckets(first, moved, end=1160)


def test_line_covers_all_steps_since_the_last_line() -> None:
    steps = [make_step(n, 100 + 10 * n) for n in (10, 20, 30)]
    assert sum_buckets(make_attempt(*steps, end=400)) == {"start-up": 100, "training": 300}


def test_line_with_some_repeated_steps() -> None:
    first = make_attempt(*(make_step(n, 100 + 10 * n) for n in (10, 20, 30, 35)), end=450, ending=SpanEnd.BROKE)
    repeated = make_attempt(*(make_step(n, 500 + 10 * (n - 20)) for n in (30, 40)), end=700)
    second = AttemptSpan(begin=500.0, end=700.0, ending=SpanEnd.LEFT, log=repeated.log)
    assert sum_buckets(first, second, end=700)["done twice"] == pytest.approx(100 + 50)


def test_save_of_unknown_length_is_a_checkpoint() -> None:
    later = make_step(11, 260, stall_s=math.inf)
    assert sum_buckets(make_attempt(*STEADY, later, end=260)) == {"start-up": 100, "training": 110, "checkpoints": 50}


def test_evaluation_inside_a_step() -> None:
    slow = make_step(11, 250, seconds=50.0, evaluated=1)
    assert sum_buckets(make_attempt(*STEADY, slow, end=250)) == {"start-up": 100, "training": 110, "evaluation": 40}


@pytest.mark.parametrize(("after", "bucket"), [(290, "unknown"), (310, "hang until noticed")])
def test_three_missing_long_steps_are_a_hang(after: float, bucket: str) -> None:
    slow = [make_step(n, 100 + 100 * n, seconds=100.0) for n in range(1, 5)]
    floats = sum_buckets(make_attempt(*slow, end=500 + after, ending=SpanEnd.OPEN))
    assert floats == {"start-up": 100, "training": 400, bucket: after}


def test_attempt_without_steps_is_start_up() -> None:
    assert sum_buckets(make_attempt(end=70, ending=SpanEnd.BROKE)) == {"start-up": 70}


@pytest.mark.parametrize(("last_output", "hang_s"), [(900.0, 100.0), (math.nan, 0.0)])
def test_crash_without_step_times_is_a_hang_after_its_last_output(last_output: float, hang_s: float) -> None:
    lines = [make_step(step, seconds=math.nan) for step in (1, 2)]
    attempt = make_attempt(*lines, ending=SpanEnd.BROKE, last_output=last_output)
    assert sum_buckets(attempt).get("hang until noticed", 0.0) == hang_s
