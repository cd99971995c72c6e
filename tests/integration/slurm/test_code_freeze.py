"""Frozen code on a real slurmctld: queued tasks run the code of their launch; an edit takes the new code."""

import json
from pathlib import Path

from opsctl.base.errors import ConfigError, InputError
from opsctl.guard.attempt_record import read_start
from opsctl.launch.code_freeze import read_record
from opsctl.telemetry.progress.signs import find_directories
from opsctl.telemetry.progress.train_settings import read_settings
from tests.support.trains import HELD, Trains, until


def write_code(trains: Trains, version: int) -> Path:
    """Write a trainer that prints its version once the file `go<task>` exists, and fails."""
    code = trains.place / "code"
    code.mkdir(exist_ok=True)
    gate = f"{trains.place}/go$SLURM_ARRAY_TASK_ID"
    (code / "train.sh").write_text(f"while [ ! -e {gate} ]; do sleep 0.05; done; echo version {version}; exit 3\n")
    return code


def let_go(trains: Trains, task: int) -> None:
    (trains.place / f"go{task}").touch()


def read_log(trains: Trains) -> str:
    log = trains.run().main_log
    return log.read_text() if log.exists() else ""


def find_codes(trains: Trains) -> list[str]:
    attempts = sorted(trains.run().attempts(), key=lambda attempt: attempt.name)
    starts = [read_start(attempt) for attempt in attempts]
    return [start.code for start in starts if start]


def test_queued_task_runs_the_code_of_its_launch(trains: Trains) -> None:
    code = write_code(trains, 1)
    guard = "restart_in_place = false\nshort_attempts = 9\nfault_attempts = 9"
    more = f"{guard}\n[setup]\nfreeze = 'copy'\ndirectory = '{code}'"
    path = trains.toml(command=("bash", "train.sh"), more=more, extra=())
    trains.opsctl("launch", path)
    first = read_record(trains.run())["hash"]
    write_code(trains, 2)
    let_go(trains, 1)
    until(lambda: "version 1" in read_log(trains))
    until(lambda: len(find_codes(trains)) == 2)  # the second task waits, with the old code
    second = max(attempt.name for attempt in trains.run().attempts())
    until(lambda: list((trains.run().logs / second).glob("*.log")))
    assert json.loads(trains.opsctl("edit", "t", path, "--json"))["changed"]
    let_go(trains, 2)
    let_go(trains, 3)
    until(lambda: not trains.rows())
    versions = [line[-1] for line in read_log(trains).splitlines() if line.startswith("[") and "version" in line]
    assert versions == ["1", "1", "2"]
    second = read_record(trains.run())["hash"]
    assert find_codes(trains) == [first, first, second]


def test_appending_changed_code_is_refused(trains: Trains) -> None:
    code = write_code(trains, 1)
    path = trains.toml(command=("bash", "train.sh"), more=f"[setup]\nfreeze = 'copy'\ndirectory = '{code}'")
    array = json.loads(trains.opsctl("launch", path, "--json"))["array"]
    trains.opsctl("launch", path, "--after", array)
    write_code(trains, 2)
    error = trains.refusal("launch", path, "--after", max(trains.arrays(), key=int))
    assert isinstance(error, InputError)
    assert "opsctl edit t" in (error.hint or "")


def test_dry_run_copies_nothing_and_a_refusal_is_one_of_the_problems(trains: Trains) -> None:
    code = write_code(trains, 1)
    setup = f"[setup]\nfreeze = 'copy'\ndirectory = '{code}'"
    assert "/trains/t/code/" in trains.opsctl("launch", trains.toml(more=setup, extra=HELD), "--dry-run")
    assert not trains.root.exists()
    path = trains.toml(more=f"{setup}\nfreeze_max_size = 10", partition="mian")
    error = trains.refusal("launch", path)
    assert isinstance(error, ConfigError)
    assert [problem for problem in error.problems if "the largest: train.sh" in problem]
    assert len(error.problems) == 2


def test_path_of_the_original_code_is_reported(trains: Trains) -> None:
    code = write_code(trains, 1)
    path = trains.toml(command=("bash", f"{code}/train.sh"), more=f"[setup]\nfreeze = 'copy'\ndirectory = '{code}'")
    assert "which is not the copy that runs" in trains.opsctl("launch", path)


def test_checkpoints_in_the_copy_are_reported_and_found(trains: Trains) -> None:
    code = write_code(trains, 1)
    setup = f"[setup]\nfreeze = 'copy'\ndirectory = '{code}'"
    path = trains.toml(command=("bash", "train.sh", "--save", "ckpt"), more=setup, extra=HELD)
    assert "the trainer finds no checkpoint there" in trains.opsctl("launch", path)
    run = trains.run()
    config = read_settings(run)
    assert config is not None
    assert find_directories(run, config)[-1].path.is_relative_to(run.path / "code")
