"""Lines of iterations, of known trainers and of scripts of one's own, and the reference of their formats."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.checkpoints.layouts import load_layouts
from opsctl.checkpoints.save_directories import load_rows
from opsctl.telemetry.progress.iteration_lines import Iteration, last_iteration, recent_iterations
from opsctl.telemetry.progress.log_formats import load_formats
from opsctl.telemetry.progress.log_formats import parse_megatron as parse
from opsctl.telemetry.progress.step_pace import median_step_s
from opsctl.telemetry.progress.step_reader import StepReader
from tests.support.cases import read_cases

CORPUS = Path(__file__).parents[3] / "corpus" / "logs"


def test_13b_line_is_read_in_seconds():
    assert parse((CORPUS / "tr1-13b.txt").read_text().splitlines()[0]) == Iteration(
        step=29020,
        last=311541,
        consumed_samples=10698064,
        step_s=22.3066,
        lr=9.85e-05,
        global_batch=1024,
        loss=2.775923,
        grad_norm=0.0,
        loss_scale=32768.0,
        skipped=0,
        nans=0,
    )


def test_line_in_the_docs_is_read(capsys, tmp_path):
    page = (CORPUS.parents[2] / "docs" / "how-to" / "foreign-trainer.md").read_text()
    code = page.partition("```python\nprint(")[2].partition("```")[0]
    for step in (6, 7):
        exec(f"print({code}", {"step": step, "last": 100, "ms": 250.04, "loss": 2.5})
    log = tmp_path / "log.txt"
    log.write_text(capsys.readouterr().out)
    iteration = last_iteration(log)
    assert (iteration.step, iteration.last, iteration.step_s, iteration.loss) == (7, 100, 0.25, 2.5)


def test_176b_line_is_read_with_tokens_and_throughput():
    assert parse((CORPUS / "tr11-176b.txt").read_text().splitlines()[0]) == Iteration(
        step=2,
        last=95367,
        consumed_samples=4096,
        tokens=8388608,
        step_s=769.99,
        lr=3.787e-06,
        global_batch=2048,
        loss=63.84045,
        grad_norm=15906.21,
        loss_scale=4096.0,
        skipped=0,
        nans=0,
        samples_per_s=2.66,
        tflops=108.47,
    )


def test_corpus_lines_have_a_loss_and_a_step_time():
    lines = []
    for path in CORPUS.glob("*.txt"):
        lines += path.read_text().splitlines()
    iterations = [parse(line) for line in lines]
    assert all(
        iteration is not None and iteration.loss is not None and iteration.step_s is not None
        for iteration in iterations
    )
    assert len(iterations) >= 7


PREFIXES = ["", "[default7]: ", "[node-1:12]: ", " [2024-05-01 10:00:00] ", "12: \x1b[0m", "é "]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_of_a_line_is_skipped(prefix):
    assert parse(f"{prefix}iteration 7/ 10 | lm loss: 1.5 |") == Iteration(step=7, last=10, loss=1.5)


def test_nan_and_infinity_are_read():
    iteration = parse("iteration 7/ 10 | lm loss: NaN | grad norm: inf | loss scale: -inf |")
    assert iteration is not None
    assert math.isnan(iteration.loss or 0)
    assert (iteration.grad_norm, iteration.loss_scale) == (math.inf, -math.inf)


def test_invalid_value_is_missing():
    iteration = parse(
        "iteration 7/ 10 | lm loss: ? | consumed samples: inf | global batch size: nan | grad norm | : 3 |"
    )
    assert iteration == Iteration(step=7, last=10)


def test_truncated_line_is_read():
    assert parse("iteration 7/ 10 | elapsed time per iteration (ms): 500.0 | lm lo") == Iteration(
        step=7, last=10, step_s=0.5
    )


def test_line_without_the_last_step_needs_a_time():
    assert parse("iteration 7 | elapsed time per iteration (s): 2 |") == Iteration(step=7, step_s=2.0)


@pytest.mark.parametrize(*read_cases(__file__, "other_lines_are_no_iterations"))
def test_other_lines_are_no_iterations(line):
    assert parse(line) is None


@given(st.text())
def test_no_line_raises(text):
    parse(text)


NAMES = ["consumed samples", "lm loss", "learning rate", "elapsed time per iteration (ms)", "tflops"]


FIELDS = st.lists(st.tuples(st.sampled_from(NAMES), st.text("0123456789.eE+-naifx_ ")))


@given(st.text(), st.text("0123456789", min_size=1), FIELDS)
def test_no_values_raise(prefix, step, fields):
    parse(f"{prefix}iteration {step}/ {step} |" + "|".join(f"{name}:{value}" for name, value in fields))


def test_last_iteration_of_a_huge_log_is_found_at_once(tmp_path):
    log = tmp_path / "main_log.txt"
    with log.open("w") as file:
        file.writelines(f"[node:7]:  iteration {n}/ 2000000 | lm loss: {n}.5 |\n" for n in range(1_000_000))
        file.write("[node:0]: noise\n" * 1000)
        file.write("[node:7]:  iteration 1000000/ 20")
    began = time.process_time()
    iteration = last_iteration(log)
    assert time.process_time() - began < 0.5
    assert iteration == Iteration(step=999999, last=2000000, loss=999999.5)


def test_recent_iterations_are_oldest_first(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"iteration {n}/ 9 |\nnoise\n" for n in range(9)))
    assert [recent_iteration.step for recent_iteration in recent_iterations(log, 3)] == [6, 7, 8]


def test_missing_or_empty_log_has_no_iteration(tmp_path):
    (tmp_path / "empty").touch()
    assert [last_iteration(tmp_path / name) for name in ("missing", "empty", ".")] == [None, None, None]


def test_search_is_limited_to_the_end(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"iteration 1/ 9 |\n" + b"noise" * 200 + b"\n")
    with log.open("r+b") as file:
        file.truncate(200 << 20)
    began = time.process_time()
    assert last_iteration(log) is None
    assert time.process_time() - began < 3


def test_slow_step_does_not_change_the_median():
    times = [2.0, 2.0, 600.0, 2.0, math.nan, None, 0.0]
    assert median_step_s([Iteration(step=n, step_s=seconds) for n, seconds in enumerate(times)]) == 2.0


def test_median_needs_a_time():
    assert median_step_s([Iteration(step=1)]) is None


def test_next_attempt_may_log_from_another_node(tmp_path):
    """A rank of another node logs the steps after a fault, and no step of the new attempt is passed over."""
    log = tmp_path / "main_log.txt"
    lines = [f"[node001:0]:  iteration {step:8d}/      15 | lm loss: 2.5E+00 |" for step in range(1, 9)]
    lines.append("2026-11-22T12:31:09Z INFO    guard     attempt 1_2.0 of t starts on node[002-003]")
    lines += [f"[node002:0]:  iteration {step:8d}/      15 | lm loss: 2.5E+00 |" for step in range(6, 16)]
    log.write_text("\n".join(lines) + "\n")
    assert [iteration.step for iteration in recent_iterations(log, 3)] == [13, 14, 15]


def read(line: str) -> dict[str, float]:
    return StepReader().read(line.encode()).values


@pytest.mark.parametrize(*read_cases(__file__, "own_line_is_read"))
def test_own_line_is_read(line: str, values: dict[str, float]) -> None:
    stated = read(line)
    assert {name: stated.get(name) for name in values} == values


@pytest.mark.parametrize(*read_cases(__file__, "other_line_states_no_step"))
def test_other_line_states_no_step(line: str) -> None:
    assert "step" not in read(line)


def test_step_within_an_epoch_is_no_step() -> None:
    assert read("Epoch 2, step 5/100, loss 2.5") == {"loss": 2.5}


@pytest.mark.parametrize("line_format", load_formats(), ids=[row.name for row in load_formats()])
def test_hostile_line_takes_bounded_time(line_format: object) -> None:
    words = " ".join(line_format.words)  # type: ignore[attr-defined]  # a LineFormat
    began = time.process_time()
    for unit in (words, "{", "1", "step ", "loss: ", "Epoch 1: 1%|", "loss=1 ", "[", "lr-a", "'loss':"):
        read(words + unit * 4096)
    assert time.process_time() - began < 5


PAGE = Path("docs/reference/progress.md").read_text(encoding="utf-8")


def test_page_names_every_format() -> None:
    assert [row.name for row in load_formats() if f"| {row.name} |" not in PAGE] == []


def test_page_names_every_layout() -> None:
    assert [layout.name for layout in load_layouts() if f"| {layout.name} |" not in PAGE] == []


def test_page_names_every_option() -> None:
    options = [option for row in load_rows() for option in row.options]
    assert [option for option in options if f"`{option}`" not in PAGE] == []
