"""The loss watchdog on lines of real trainings, and on damaged logs."""

from __future__ import annotations

import math
import os
from pathlib import Path

from opsctl.model import Level
from tests.support.watch_context import LINE, Bench

ROOT = Path(__file__).parents[3]
TR1 = (ROOT / "tests/corpus/logs/tr1-13b.txt").read_text().splitlines()
TR11 = [
    (2.198845, 0.242),
    (2.220424, 0.947),
    (2.595213, 2.39),
    (2.241558, 15.886),
    (2.345279, 145.119),
    (5.098124, 960.351),
    (3.492029, 353.201),
    (3.213059, 379.33),
    (2.804948, 650.246),
]
"""Losses and gradient norms of the 176B training from step 31214; at step 31250 they were 2.216 and 0.267 again."""


def format_tr11(step: int, loss: float, norm: float) -> str:
    return f"{LINE.format(step=step, step_s=106.4, loss=loss)} grad norm: {norm:.3f} | number of nan iterations: 0 |"


def make_calm(first: int, last: int, level: float, norm: float) -> list[str]:
    return [format_tr11(step, level * (1 + 0.004 * (step * 7919 % 11 - 5) / 5), norm) for step in range(first, last)]


def test_spike_of_the_13b_training(bench: Bench) -> None:
    bench.write_log(*(TR1[0].replace("29020", str(step)) for step in range(28000, 29020, 10)), TR1[0])
    assert bench.judge("loss").summary == "gpt: loss 2.776 at step 29020"
    bench.write_log(TR1[1])
    finding = bench.judge("loss")
    assert (finding.level, finding.summary) == (
        Level.WARNING,
        "gpt: loss 7.344 at step 29050, spiked from 2.776 to 7.344 at step 29050",
    )
    bench.write_log(TR1[2], TR1[3])
    assert "to 8.716 at step 29050" in bench.judge("loss").summary


def test_spike_of_the_176b_training_ends(bench: Bench) -> None:
    bench.write_log(*make_calm(31100, 31214, 2.2, 0.24))
    assert bench.judge("loss").level is Level.OK
    bench.write_log(*(format_tr11(31214 + index, *figures) for index, figures in enumerate(TR11)))
    finding = bench.judge("loss")
    assert finding.level is Level.WARNING
    assert "to 5.098 at step 31219" in finding.summary
    assert finding.evidence[-1] == "grad norm 650.2 at step 31222"
    bench.write_log(*make_calm(31245, 31252, 2.215, 0.267))
    assert bench.judge("loss").level is Level.OK


def test_constant_zero_norm_is_ok(bench: Bench) -> None:
    bench.write_log(*(TR1[0].replace("29020", str(step)) for step in range(29000, 29300)))
    assert bench.judge("loss").level is Level.OK


def test_nan_iterations_are_critical_despite_a_loss(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 30, 2.0, 0.2), format_tr11(30, 2.0, 0.2).replace("iterations: 0", "iterations: 1"))
    finding = bench.judge("loss")
    assert (finding.level, finding.summary) == (Level.CRITICAL, "gpt: no finite loss for 1 log line, at step 30")


def test_duplicate_lines_of_ranks_are_read_once(bench: Bench) -> None:
    for step in range(1, 60):
        bench.write_log(*(f"[node-a:{rank}]: {format_tr11(step - rank % 2, 2.0, 0.2)}" for rank in range(4)))
        bench.judge("loss")
    for step in range(60, 65):
        bench.write_log(*(f"[node-a:{rank}]: {format_tr11(step, math.nan, 0.2)}" for rank in range(4)))
    assert bench.judge("loss").summary == "gpt: no finite loss for 5 log lines, at step 64"


def test_another_rank_replaces_a_silent_rank(bench: Bench) -> None:
    bench.write_log(*(f"[node-a:0]: {line}" for line in make_calm(1, 60, 2.0, 0.2)))
    bench.judge("loss")
    bench.write_log(*(f"[node-b:9]: {line}" for line in make_calm(60, 70, 2.0, 0.2)))
    assert bench.judge("loss").summary.endswith("at step 69")


def test_garbage_and_partial_lines_are_ignored(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    with bench.run.main_log.open("ab") as log:
        log.write(os.urandom(100_000) + b"\n iteration \xff\xfe/ 3 | lm loss: nan-ish |\n iteration 60/ 100 | lm lo")
    assert bench.judge("loss").summary == "gpt: loss 2.003 at step 59"
    with bench.run.main_log.open("ab") as log:
        log.write(b"ss: 2.1 |\n")
    assert bench.judge("loss").summary == "gpt: loss 2.1 at step 60"


def test_rotated_log_is_continued(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    bench.judge("loss")
    bench.run.main_log.rename(bench.run.logs / "main_log.txt.1")
    bench.write_log(*make_calm(60, 63, 2.0, 0.2))
    assert bench.judge("loss").summary.endswith("at step 62")


def test_lines_before_the_rotation_are_read(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    bench.judge("loss")
    bench.write_log(*make_calm(60, 63, 9.0, 0.2))
    bench.run.main_log.rename(bench.run.logs / "main_log.txt.1")
    bench.write_log(*make_calm(63, 64, 9.0, 0.2))
    summary = bench.judge("loss").summary
    assert "at step 63, spiked from 2 to 9" in summary and summary.endswith("at step 60")
    bench.run.main_log.rename(bench.run.logs / "main_log.txt.2")
    assert bench.judge("loss").summary == summary, "no line is read twice"


def test_log_that_reappears_is_not_read_again(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    bench.judge("loss")
    bench.run.main_log.rename(bench.root / "elsewhere")
    bench.judge("loss")
    (bench.root / "elsewhere").rename(bench.run.main_log)
    fields = bench.make_context().memory.read("loss", "gpt")
    assert fields["offset"] == bench.run.main_log.stat().st_size


def test_missing_log_is_ok(bench: Bench) -> None:
    finding = bench.judge("loss")
    assert (finding.level, finding.summary) == (Level.OK, "gpt: no loss: nothing logged yet")


def test_log_without_a_loss_is_unknown(bench: Bench) -> None:
    bench.write_log("a trainer that logs nothing known")
    finding = bench.judge("loss")
    assert (finding.level, finding.summary) == (Level.UNKNOWN, "gpt: no loss in the log")


def test_loss_of_another_trainer_is_watched(bench: Bench) -> None:
    bench.write_log(
        *(f"{{'loss': '{2 + n % 3 / 100:.4f}', 'learning_rate': '1e-05', 'global_step': '{n}'}}" for n in range(1, 60))
    )
    assert bench.judge("loss").level is Level.OK
    bench.write_log("{'loss': 'nan', 'global_step': '61'}")
    assert bench.judge("loss").level is Level.CRITICAL


def test_line_is_read_once(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    bench.judge("loss")
    memory = (bench.root / ".site/watch/loss/gpt.json").read_text()
    bench.judge("loss")
    assert (bench.root / ".site/watch/loss/gpt.json").read_text() == memory


def test_broken_memory_is_rebuilt(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    before = bench.judge("loss")
    (bench.root / ".site/watch/loss/gpt.json").write_text("{torn")
    assert bench.judge("loss") == before


def test_unwritable_memory_is_a_problem_only(bench: Bench) -> None:
    bench.write_log(*make_calm(1, 60, 2.0, 0.2))
    (bench.root / ".site").write_text("in the way")
    context = bench.make_context()
    context.memory.write("loss", "gpt", {"a": 1})
    assert len(context.memory.problems) == 1
    assert bench.judge("loss").level is Level.OK
