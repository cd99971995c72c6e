"""Signs of progress. `pytest tests/unit/telemetry/progress/test_signs.py`"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import ProgressSigns, SignKind, has_advanced, read_signs


def config(*command: str, **tables: Any) -> TrainSettings:
    fields = {"name": "toy", "slurm": {"nodes": 1, "time_limit": "2"}, "command": list(command), **tables}
    return parse(TrainSettings, fields, "train.toml")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "toy")
    run.create()
    return run


def save(directory: Path, step: int) -> None:
    """Save as a trainer that torch.save writes for."""
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(directory / f"ckpt-{step}.pt", "w") as file:
        file.writestr("data.pkl", "weights")


def test_nothing_is_unknown(run: RunDir) -> None:
    signs = read_signs(run, config("train.py"))
    assert (signs.step, signs.checkpoint, signs.loss, signs.step_s, signs.last_sign) == (None,) * 5
    assert not signs.has_finished


def test_own_path_shows_progress(run: RunDir, tmp_path: Path) -> None:
    own = tmp_path / "elsewhere"
    settings = config("python", "train.py", "--save", str(own))
    before = read_signs(run, settings)
    save(own, 120)
    after = read_signs(run, settings)
    assert after.resume_step == 120
    assert after.last_sign is SignKind.CHECKPOINT
    assert has_advanced(before, after)
    assert not has_advanced(after, after)
    save(own, 240)
    assert has_advanced(after, read_signs(run, settings))


def test_log_names_the_directory(run: RunDir, tmp_path: Path) -> None:
    save(tmp_path / "hidden", 7)
    run.main_log.write_text(
        f"[n1:0]: saving checkpoint at iteration 7 to {tmp_path}/hidden/ckpt-7.pt in torch format\n"
    )
    signs = read_signs(run, config("train.py"))
    assert signs.resume_step == 7
    assert signs.directories[-1].reason == "a save in the log"


def test_steps_count_from_the_start_of_the_attempt(run: RunDir) -> None:
    earlier = "".join(f"step {step}/900 loss {step}.5\n" for step in range(1, 400))
    run.main_log.write_text(earlier + "".join(f"step {step}/900 loss 2.5\n" for step in range(300, 360)))
    signs = read_signs(run, config("train.py"), begin=len(earlier))
    assert (signs.first_step, signs.step, signs.total_steps, signs.loss) == (300, 359, 900, 2.5)


def test_resumed_attempt_that_got_further_has_advanced() -> None:
    before = ProgressSigns(first_step=1, step=100)
    assert has_advanced(before, ProgressSigns(first_step=90, step=200))
    assert not has_advanced(before, ProgressSigns(first_step=1, step=200))
    assert not has_advanced(before, ProgressSigns(first_step=90, step=100))
    assert not has_advanced(ProgressSigns(), ProgressSigns(first_step=90, step=100))


def test_partial_checkpoint_is_no_advance(run: RunDir) -> None:
    before = read_signs(run, config("train.py"))
    partial = run.checkpoints / "checkpoint-500"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"half')
    after = read_signs(run, config("train.py"))
    assert [checkpoint.step for checkpoint in after.partial] == [500]
    assert not has_advanced(before, after)


def test_heartbeat_of_another_attempt_does_not_count(run: RunDir) -> None:
    beat = {"attempt": "9_1.0", "node": "n", "rank": 0, "phase": "train", "step": 44, "at": 1e9, "limit_s": 60.0}
    (run.heartbeat / "train.json").write_text(json.dumps(beat))
    assert read_signs(run, config("train.py"), attempt="9_1.0").step == 44
    assert read_signs(run, config("train.py"), attempt="9_2.0").step is None


@pytest.mark.parametrize(
    ("text", "finished", "signalled"),
    [
        ("Training completed. Do not forget to share your model\n", True, False),
        ("`Trainer.fit` stopped: `max_steps=500` reached.\n", True, False),
        ("`Trainer.fit` stopped: `max_time=0:10:00` reached.\n", False, True),
        ("Time limit reached, stopping\nTraining finished\n", False, True),
        ("Training completed: wall time exceeded\n", False, True),
        ("Time limit given by max_time_per_run=0:00:10 reached. Stopping run\nTraining complete\n", False, True),
        ("the time limit of the episode was reached\nTraining complete\n", True, False),
        ("Received SIGTERM, saving checkpoint and exiting\nTraining complete\n", False, True),
        ("step 3/9 loss 2.0\n", False, False),
    ],
)
def test_end_in_the_log(run: RunDir, text: str, finished: bool, signalled: bool) -> None:
    run.main_log.write_text(text)
    signs = read_signs(run, config("train.py"))
    assert (signs.has_finished, signs.was_signalled) == (finished, signalled)


def test_pattern_of_train_toml_reads_steps(run: RunDir) -> None:
    run.main_log.write_text("[n1:0]: done #17 -> 3.25 (250 ms)\nstep 99/100 loss 1\n")
    pattern = r"done #(?P<step>\d+) -> (?P<loss>[\d.]+) \((?P<step_ms>\d+) ms\)"
    signs = read_signs(run, config("train.py", progress={"pattern": pattern}))
    assert (signs.step, signs.loss, signs.step_s) == (17, 3.25, 0.25)


def test_beginning_and_end_of_a_long_log_are_read(run: RunDir) -> None:
    with run.main_log.open("w") as log:
        log.write("step 1/90000 loss 9.5\n")
        log.write(("x" * 99 + "\n") * 60_000)
        log.write("step 80000/90000 loss 1.5\n")
    signs = read_signs(run, config("train.py"))
    assert (signs.first_step, signs.step) == (1, 80000)
