"""Whole logs, of Megatron-DeepSpeed and of other trainers: any log is read without an error."""

import gzip
import math
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
from opsctl.telemetry.progress.iteration_lines import tail
from opsctl.telemetry.progress.log_formats import parse_megatron
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.read_log import read_summary
from tests.support.cases import read_table
from tests.support.made_reports import make_rough_train

ITERATION = " iteration {:8d}/ 1000 | elapsed time per iteration (ms): 10.5 | lm loss: 2.0E+00 | loss scale: 4096.0 |"
MESSAGES = [text.encode() for text in read_table(__file__, "messages")]
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


def summarize(tmp_path: Path, text: str, cuts: list[int] | None = None, pattern: str = "") -> LogSummary:
    log = tmp_path / "main_log.txt"
    log.write_text(text)
    return read_summary(log, cuts, pattern=pattern)


def titan(step: int, second: int, loss: float = 2.5) -> str:
    return (
        f"[n1:0]: [titan] 2026-05-18 16:{second // 60:02}:{second % 60:02},000 - root - INFO - step: {step:2}  "
        f"loss: {loss:8.5f}  grad_norm:  1.8034  memory: 11.42GiB(14.43%)  tps: 7,250  tflops: 347.98  mfu: 35.18%\n"
    )


def bar(step: int, total: int = 100) -> str:
    return f"[n1:0]: \r {step:2}%|##   | {step}/{total} [00:{step:02}<01:00,  2.00s/it]"


def test_steps_and_times_are_read(tmp_path: Path) -> None:
    summary = summarize(tmp_path, "".join(titan(step, 5 * step) for step in range(1, 60)))
    (part,) = summary.parts
    assert (len(part), part.steps[0], part.steps[-1]) == (59, 1, 59)
    assert set(part.step_seconds[1:]) == {5.0}
    assert part.latest[1] - part.latest[0] == 5
    assert summary.curves["tflops"].points()
    assert summary.loss.points()[-1].mean == 2.5


def test_attempts_are_cut_at_their_offsets(tmp_path: Path) -> None:
    first = "".join(titan(step, step) for step in range(1, 21))
    second = "".join(titan(step, 100 + step) for step in range(11, 31))
    summary = summarize(tmp_path, first + second, [0, len(first)])
    assert [(part.steps[0], part.steps[-1]) for part in summary.parts if len(part)] == [(1, 20), (11, 30)]


def test_step_that_goes_back_begins_an_attempt(tmp_path: Path) -> None:
    text = "".join(titan(step, step) for step in [*range(1, 21), *range(11, 31)])
    assert [len(part) for part in summarize(tmp_path, text).parts] == [20, 20]


def test_bars_and_dictionaries_are_read(tmp_path: Path) -> None:
    text = "".join(bar(step) + f"\r{{'loss': '{step}.5', 'epoch': '0.1'}}\n" for step in range(1, 51))
    summary = summarize(tmp_path, text)
    assert list(summary.parts[0].step_seconds) == [2.0] * 50
    assert summary.last is not None
    assert (summary.last.step, summary.last.last, summary.last.loss) == (50, 100, 50.5)


def test_bar_on_one_line_is_read(tmp_path: Path) -> None:
    text = "".join(bar(step) for step in range(1, 51))
    assert list(summarize(tmp_path, text).parts[0].steps) == list(range(1, 51))
    assert [step.step for _, step in tail(tmp_path / "main_log.txt", 3)] == [48, 49, 50]


def test_values_after_their_step_belong_to_it(tmp_path: Path) -> None:
    head = "2026-11-22 07:28:{n:02}.000\tn1:0\tlogger:64\tINFO\t[step={n}/90,epoch=1]"
    text = "".join(f"{head.format(n=n)}\n    train/CE loss={n}.25\n" for n in range(1, 9))
    summary = summarize(tmp_path, text)
    assert summary.last is not None
    assert (summary.last.step, summary.last.loss) == (8, 8.25)


def test_compressed_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "main_log.txt.1.gz"
    log.write_bytes(gzip.compress("".join(titan(step, step) for step in range(1, 21)).encode()))
    assert read_summary(log).lines == 20


def test_pattern_of_train_toml_is_used(tmp_path: Path) -> None:
    text = "".join(f"it#{n} took {n * 100}ms\n" for n in range(1, 5))
    summary = summarize(tmp_path, text, pattern=r"it#(?P<step>\d+) took (?P<step_ms>\d+)ms")
    assert list(summary.parts[0].step_seconds) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_steps_without_times_have_no_length(tmp_path: Path) -> None:
    summary = summarize(tmp_path, "".join(f"step {n}/90 loss 2.5\n" for n in range(1, 9)))
    assert all(math.isnan(step_s) for step_s in summary.parts[0].step_seconds)


def test_one_rank_is_followed(tmp_path: Path) -> None:
    text = "".join(f"[n1:{rank}]: step {n - rank}/90 loss 2.5\n" for n in range(2, 30) for rank in (0, 1))
    assert [len(part) for part in summarize(tmp_path, text).parts] == [28]


def test_evaluation_bars_are_no_steps(tmp_path: Path) -> None:
    text = "Total optimization steps = 100\n" + "".join(
        bar(step) + "\n" + "\r 40%|##   | 2/5 [00:01<00:01,  2.00it/s]\n" for step in range(1, 20)
    )
    assert list(summarize(tmp_path, text).parts[0].steps) == list(range(1, 20))
