"""Any log is read without an error. `pytest tests/unit/report`"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.report.html_page import render_page
from opsctl.report.log_report import report_log
from opsctl.slurm.past_jobs import JobRun, parse_past_jobs
from opsctl.telemetry.progress import read_log
from opsctl.telemetry.progress.bounded_curve import MAX_BINS, BoundedCurve
from opsctl.telemetry.progress.log_formats import parse_megatron
from opsctl.telemetry.progress.read_log import read_summary
from tests.support.made_reports import make_rough_train

ITERATION = " iteration {:8d}/ 1000 | elapsed time per iteration (ms): 10.5 | lm loss: 2.0E+00 | loss scale: 4096.0 |"
MESSAGES = [
    b"saving checkpoint at iteration      30 to /c",
    b"time (ms) | save-checkpoint: 57514.53",
    b"[exiting program after 1190.03 minutes] datetime: 2021-08-08 01:00:51",
    b"[2021-08-08 01:00:44,221] [INFO] [logging.py:68:log_dist] [Rank 0] Saving model checkpoint: /c",
    b" > loading checkpoint from /c at iteration 30",
    b"validation loss at iteration 100 | lm loss value: 2.0E+00 |",
    b"[2021-02-31 25:61:61] iteration 7/ 9 |",
    b"iteration 99999999999999999999/ 5 | elapsed time per iteration (s): nan |",
    b"iteration 5/ 9 | elapsed time per iteration (s): -inf | global batch size: 1e300 | lm loss: | TFLOPs: x |",
]
LINES = (
    st.integers(1, 40).map(lambda step: ITERATION.format(step).encode())
    | st.sampled_from(MESSAGES)
    | st.binary(max_size=80)
)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINES, max_size=30), cuts=st.none() | st.lists(st.integers(0, 4000), max_size=4).map(sorted))
def test_any_log_is_read(lines: list[bytes], cuts: list[int] | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        log.write_bytes(b"\n".join(lines))
        summary = read_summary(log, cuts)
    assert cuts is None or len(summary.parts) == len(cuts) + 1
    assert all(len({len(column) for column in part.columns}) == 1 for part in summary.parts)
    assert summary.lines <= sum(line.count(b"iteration") for line in lines)


JOBS = parse_past_jobs("JobID|State|Start|End\n1|FAILED|1628380000|1628380800\n2|COMPLETED|1628380900|Unknown\n", "it")


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINES, max_size=30), jobs=st.none() | st.just(JOBS))
def test_report_of_any_log_adds_up(lines: list[bytes], jobs: list[JobRun] | None) -> None:
    now = datetime(2021, 8, 8, 2, tzinfo=UTC)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        log.write_bytes(b"\n".join([*lines, ITERATION.format(41).encode()]))
        report = report_log(log, jobs, now)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)
    assert report.wall_s == pytest.approx((report.end - report.begin).total_seconds(), abs=1e-5)
    assert sum(sum(attempt.buckets.values()) for attempt in report.attempts) <= report.wall_s * 1.000001
    assert render_page(report)


@given(steps=st.lists(st.integers(1, 10**6), unique=True, max_size=30).map(sorted))
@settings(max_examples=50, deadline=None)
def test_whole_log_reader_agrees_with_line_parser(steps: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        log.write_text("\n".join(f"[n:1]: {ITERATION.format(step)}\nnoise" for step in steps))
        (part,) = read_summary(log).parts
    lines = [parse_megatron(ITERATION.format(step)) for step in steps]
    assert [(log_step.step, log_step.step_s) for log_step in part] == [
        (line.step, line.step_s) for line in lines if line
    ]


@pytest.mark.parametrize("size", [999, 4096, 10_007])
def test_chunk_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    train = make_rough_train(tmp_path)
    whole = train.report(99999)
    monkeypatch.setattr(read_log, "CHUNK_BYTES", size)
    assert train.report(99999) == whole


def test_curve_of_many_values_is_small_with_its_spike() -> None:
    curve = BoundedCurve()
    for step in range(0, 500_000, 10):
        curve.add(step, 9.0 if step == 123_450 else 2.0)
    points = curve.points()
    assert MAX_BINS / 2 <= len(points) <= MAX_BINS
    assert max(point.high for point in points) == 9.0
    assert max(point.mean for point in points) < 2.1
    assert [point.step for point in points] == sorted(point.step for point in points)
