"""Signs of progress. `pytest tests/unit/telemetry/progress/test_signs.py`"""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.log_events import ProgressEventKind
from opsctl.telemetry.progress.signs import LogSigns, find_directories, find_train_saves, read_log_signs
from tests.support.cases import read_cases


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


def test_missing_log_shows_nothing(run: RunDir) -> None:
    assert read_log_signs(run.main_log) == LogSigns()


def test_numbers_in_quotes_are_values_of_an_epoch(run: RunDir) -> None:
    run.main_log.write_text("{'loss': '2.1', 'learning_rate': '4e-05', 'epoch': '0.52'}\n")
    assert read_log_signs(run.main_log).highest_epoch == 0.52


def test_checkpoints_of_the_command_are_found(run: RunDir, tmp_path: Path) -> None:
    own = tmp_path / "elsewhere"
    settings = config("python", "train.py", "--save", str(own))
    assert find_train_saves(run, settings) == []
    save(own, 120)
    save(own, 240)
    assert [found.step for found in find_train_saves(run, settings)] == [120, 240]


def test_log_names_the_directory(run: RunDir, tmp_path: Path) -> None:
    save(tmp_path / "hidden", 7)
    run.main_log.write_text(
        f"[n1:0]: saving checkpoint at iteration 7 to {tmp_path}/hidden/ckpt-7.pt in torch format\n"
    )
    found = find_directories(run, config("train.py"), logged=read_log_signs(run.main_log).saved_paths)
    assert (found[-1].path, found[-1].reason) == (tmp_path / "hidden", "a save in the log")


def test_steps_count_from_the_start_of_the_attempt(run: RunDir) -> None:
    earlier = "".join(f"step {step}/900 loss {step}.5\n" for step in range(1, 400))
    run.main_log.write_text(earlier + "".join(f"step {step}/900 loss 2.5\n" for step in range(300, 360)))
    signs = read_log_signs(run.main_log, len(earlier))
    assert signs.first is not None
    last = signs.steps[-1]
    assert (signs.first.step, signs.highest, last.last, last.loss) == (300, 359, 900, 2.5)


@pytest.mark.parametrize(*read_cases(__file__, "end_in_the_log"))
def test_end_in_the_log(run: RunDir, text: str, finished: bool, signalled: bool) -> None:
    run.main_log.write_text(text)
    signs = read_log_signs(run.main_log)
    was_signalled = signs.has(ProgressEventKind.SIGNALLED, ProgressEventKind.EXITING)
    assert (signs.has(ProgressEventKind.FINISHED) and not was_signalled, was_signalled) == (finished, signalled)


def test_pattern_of_train_toml_reads_steps(run: RunDir) -> None:
    run.main_log.write_text("[n1:0]: done #17 -> 3.25 (250 ms)\nstep 99/100 loss 1\n")
    pattern = r"done #(?P<step>\d+) -> (?P<loss>[\d.]+) \((?P<step_ms>\d+) ms\)"
    signs = read_log_signs(run.main_log, pattern=pattern)
    assert [(step.step, step.loss, step.step_s) for step in signs.steps] == [(17, 3.25, 0.25)]


def test_beginning_and_end_of_a_long_log_are_read(run: RunDir) -> None:
    with run.main_log.open("w") as log:
        log.write("step 1/90000 loss 9.5\n")
        log.write(("x" * 99 + "\n") * 60_000)
        log.write("step 80000/90000 loss 1.5\n")
    signs = read_log_signs(run.main_log)
    assert signs.first is not None
    assert (signs.first.step, signs.highest) == (1, 80000)
