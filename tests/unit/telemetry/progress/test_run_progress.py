"""Progress of a run from its log: curve, usual pace, next checkpoint and remaining time."""

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.cli.status_card import ASCII, sparkline
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import Iteration, sampled, tail
from opsctl.telemetry.progress.run_progress import (
    NextSave,
    Progress,
    TaskPace,
    drop_repeated_steps,
    predict_next_save,
    read_progress,
)

LINE = (
    "iteration {step}/ {last} | consumed tokens: {tokens} | elapsed time per iteration (s): {s} | "
    "global batch size: {batch} | lm loss: {loss} | TFLOPs: {tflops} |\n"
)


def line(step: int, **changes: object) -> str:
    fields = {"last": 1000, "tokens": step * 2048, "s": 2.0, "batch": 16, "loss": 10 - step / 100, "tflops": 150.0}
    return LINE.format(**{"step": step, **fields, **changes})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "gpt")
    run.create()
    return run


def read(run: RunDir, *lines: str, pace: TaskPace | None = None) -> Progress:
    run.main_log.write_text("".join(lines))
    progress = read_progress(run, pace=pace)
    assert progress is not None
    return progress


def test_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline([1.0, 1.0], 8) == "▅▅"
    assert sparkline([1.0], 8) == ""
    assert sparkline([0.0, 1.0], 8, ramp=ASCII) == "_@"


def test_sparkline_shows_spikes_and_nan() -> None:
    calm = [1.0] * 100
    assert sparkline([*calm, 9.0, *calm], 10).count("█") == 1
    assert sparkline([*calm[:93], math.nan, *calm], 10).count("x") == 1
    assert len(sparkline(calm, 10)) == 10


def test_repeated_steps_are_on_the_curve_once() -> None:
    lines = [Iteration(step=step) for step in (1, 2, 3, 4, 2, 3)]
    assert [drop_repeated_step.step for drop_repeated_step in drop_repeated_steps(lines)] == [1, 2, 3]


def test_loss_and_tokens_are_of_the_newest_line(run: RunDir) -> None:
    progress = read(run, *(line(step) for step in range(1, 400)))
    assert (progress.step, progress.last_step, progress.tokens) == (399, 1000, 399 * 2048)
    assert (len(progress.losses), progress.losses_from, progress.losses[-1]) == (240, 160, 10 - 3.99)


def test_usual_pace_is_over_the_whole_run(run: RunDir) -> None:
    progress = read(run, *(line(step) for step in range(1, 3000)), *(line(s, tflops=120) for s in range(3000, 3300)))
    assert (progress.tflops, progress.usual_tflops) == (120, 150)


def test_usual_step_is_of_the_same_batch(run: RunDir) -> None:
    small = (line(step, s=0.5, batch=1) for step in range(1, 3000))
    progress = read(run, *small, *(line(s) for s in range(3000, 3300)))
    assert (progress.step_s, progress.usual_step_s) == (2.0, 2.0)


def test_sample_covers_the_whole_log(run: RunDir) -> None:
    run.main_log.write_text("".join(line(step) for step in range(1, 50_000)))
    next_steps = [iteration.step for iteration in sampled(run.main_log)]
    assert next_steps == sorted(next_steps)
    assert (next_steps[0] < 10, next_steps[-1] > 48_000, len(next_steps)) == (True, True, 64)


def test_noisy_log_is_read_to_a_bound(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        line(1).encode() + b"n001: NCCL INFO nothing to see here, and much of it\n" * 600_000 + line(2).encode()
    )
    began = time.process_time()
    assert [iteration.step for _, iteration in tail(log, 240)] == [2]
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("s", "last"), [(2.0, 0), ("nan", 100), (0.0, 100), ("inf", 100), (1e300, 100)])
def test_time_left_is_unknown_without_end_or_step(run: RunDir, s: object, last: int) -> None:
    assert read(run, line(5, s=s, last=last), pace=TaskPace()).left is None


def test_time_left_has_a_range_from_past_waits(run: RunDir) -> None:
    pace = TaskPace(task_s=500, running_s=400, waits_s=(100, 300))
    left = read(run, line(100), pace=pace).left
    assert left is not None
    assert (left.training, left.attempts, left.likely) == (1800, 3, 1800 + 3 * 200)
    assert left.early < left.likely < left.late


def test_later_tasks_do_the_rest(run: RunDir) -> None:
    def attempts(running_s: float) -> int:
        progress = read(run, line(900), pace=TaskPace(task_s=100, running_s=running_s))
        assert progress.left is not None
        return progress.left.attempts

    assert [attempts(running_s) for running_s in (200, 100, 99, 0)] == [0, 1, 2, 2]


def make_checkpoints(run: RunDir, *checkpoints: str) -> None:
    for name in checkpoints:
        (run.checkpoints / name).mkdir()


def next_steps(checkpoints: NextSave) -> tuple[int | None, int | None]:
    return checkpoints.checkpoint_step, checkpoints.next_save


def test_checkpoint_age_is_from_its_completion(run: RunDir) -> None:
    run.trainer_config.write_text("{}")
    saved = run.checkpoints / "step-0000050"
    saved.mkdir()
    (saved / "COMPLETE").write_text("")
    os.utime(saved / "COMPLETE", (1e9, 1e9))
    assert predict_next_save(run, 60, None).checkpoint_at == datetime.fromtimestamp(1e9, UTC)
    assert predict_next_save(run, 60, None, newest=55).checkpoint_at is None


def test_embedded_trainer_saves_at_interval_and_end(run: RunDir) -> None:
    run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 100}}))
    make_checkpoints(run, "step-0000300", ".saving-step-0000400")
    (run.checkpoints / "step-0000300" / "COMPLETE").write_text("")
    assert next_steps(predict_next_save(run, 350, 1000)) == (300, 400)
    assert next_steps(predict_next_save(run, 400, 450)) == (300, 450)
    assert next_steps(predict_next_save(run, 450, 450)) == (300, None)
    run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 0}}))
    assert predict_next_save(run, 350, 1000).next_save == 1000


def test_foreign_trainer_is_assumed_to_keep_its_interval(run: RunDir) -> None:
    assert predict_next_save(run, 350, 1000) == NextSave()
    make_checkpoints(run, "global_step100", "global_step200", "global_step250", "global_step300", "global_step400")
    for checkpoint in run.checkpoints.iterdir():
        (checkpoint / "mp_rank_00_model_states.pt").write_text("weights")
    (run.checkpoints / "latest").write_text("global_step400")
    assert next_steps(predict_next_save(run, 450, 1000)) == (400, 500)
    assert next_steps(predict_next_save(run, 399, 1000)) == (400, 500)  # saved before the log said so


def test_one_checkpoint_predicts_no_next(run: RunDir) -> None:
    make_checkpoints(run, "iter_0000100")
    assert next_steps(predict_next_save(run, 150, 1000)) == (None, None)
    (run.checkpoints / "iter_0000100" / ".metadata").write_text("written last")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("100")
    assert next_steps(predict_next_save(run, 150, 1000)) == (100, None)


def test_unreadable_settings_predict_no_save(run: RunDir) -> None:
    run.trainer_config.write_text("{")
    assert predict_next_save(run, 150, None) == NextSave()


def test_checkpoints_alone_show_progress(run: RunDir) -> None:
    assert read_progress(run) is None
    saved = run.checkpoints / "checkpoint-40"
    saved.mkdir()
    (saved / "trainer_state.json").write_text("{}")
    progress = read_progress(run)
    assert progress is not None
    assert (progress.step, progress.checkpoint_step, progress.loss, progress.step_s) == (40, 40, None, None)


def read_foreign(run: RunDir, log: str, *command: str) -> Progress:
    """Return the progress of a foreign trainer, which logs no step."""
    words = list(command or ("python", "train.py"))
    run.config.write_text(f'name = "{run.name}"\ncommand = {words}\n[slurm]\nnodes = 1\ntime_limit = "2"\n')
    run.main_log.write_text(log)
    progress = read_progress(run)
    assert progress is not None
    return progress


def test_epochs_are_progress_where_no_step_is_known(run: RunDir) -> None:
    progress = read_foreign(run, "{'loss': 2.5, 'epoch': 0.01}\n{'loss': 2.25, 'epoch': 0.52}\n")
    assert (progress.place, progress.loss, progress.is_step_known) == ("epoch 0.52", 2.25, False)
    tutorial = read_foreign(run, "[GPU0] Epoch 56 | Batchsize: 32\n[GPU0] Epoch 57 | Batchsize: 32\n")
    assert tutorial.place == "epoch 57"


def test_checkpoints_that_seem_incomplete_are_counted(run: RunDir) -> None:
    for step in range(1, 44):
        (run.checkpoints / f"iter_{step:07}").mkdir(parents=True)
        (run.checkpoints / f"iter_{step:07}" / "weights.bin").write_text("1")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("43")
    progress = read_foreign(run, " iteration 44/ 90 | lm loss: 2.0E+00 |\n")
    note = "43 found, none recognised as complete: iter_0000043: mp_rank_*/model_*rng.pt is missing or empty"
    assert (progress.checkpoint_step, progress.found_instead) == (None, note)


def test_file_that_only_the_log_names_is_a_checkpoint(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "snapshot.pt").write_text("1")
    progress = read_foreign(run, f"Checkpoint saved to {tmp_path}/elsewhere/snapshot.pt\nEpoch 1\nEpoch 2\n")
    assert (progress.checkpoint_note, progress.checkpoint_at is not None) == ("snapshot.pt", True)
