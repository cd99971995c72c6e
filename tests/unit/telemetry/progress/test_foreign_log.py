"""Whole logs of other trainers. `pytest tests/unit/telemetry/progress/test_foreign_log.py`"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from opsctl.telemetry.progress.iteration_lines import tail
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.read_log import read_summary


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
    assert summary.tflops.values
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
