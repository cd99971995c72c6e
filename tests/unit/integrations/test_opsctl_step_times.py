"""The stand-alone file for step times: what it measures and writes, and what it needs."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from opsctl.integrations import opsctl_step_times
from opsctl.integrations.opsctl_step_times import StepTimes
from opsctl.trainer.contract import Env, read_step_times

SOURCE = Path(opsctl_step_times.__file__)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    directory = tmp_path / "step-times"
    return {Env.STEP_TIMES_DIR: str(directory), "TRAIN_NODE": "node001", "RANK": "3", "LOCAL_RANK": "1"}


def path_of(environ: dict[str, str]) -> Path:
    return Path(environ[Env.STEP_TIMES_DIR]) / "3.json"


def test_own_work_of_a_step_is_written_at_the_end(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(opsctl_step_times, "time", clock)
    times = StepTimes(environ, work="stage 2")
    for _ in range(5):
        for _ in range(2):
            with times.compute():
                clock.now += 0.25
        clock.now += 1  # such as a wait for the other ranks
        times.end_step()
    assert not path_of(environ).exists()
    times.write()
    record = read_step_times(path_of(environ))
    assert record and (record.node, record.rank, record.local_rank, record.steps) == ("node001", 3, 1, 5)
    assert (record.work, record.compute_s) == ("stage 2 on CPU", 0.5)
    assert [path.name for path in path_of(environ).parent.iterdir()] == ["3.json"]


def test_file_is_written_during_the_training(environ: dict[str, str]) -> None:
    times = StepTimes(environ, every_s=0)
    with times.compute():
        time.sleep(0.001)
    times.end_step()
    assert read_step_times(path_of(environ))


def test_dropped_work_is_in_no_step(environ: dict[str, str]) -> None:
    times = StepTimes(environ)
    with times.compute():
        time.sleep(0.001)
    times.drop()
    times.end_step()
    times.write()
    assert not path_of(environ).exists()


def test_nothing_happens_outside_a_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    times = StepTimes({}, every_s=0)
    with times.compute():
        pass
    times.end_step()
    times.write()
    assert list(tmp_path.iterdir()) == []


def test_failure_in_the_own_work_is_passed_on(environ: dict[str, str]) -> None:
    times = StepTimes(environ)
    with pytest.raises(ZeroDivisionError), times.compute():
        _ = 1 / 0
    times.write()
    assert not path_of(environ).exists()


def test_failed_write_is_printed_once(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    times = StepTimes({**environ, Env.STEP_TIMES_DIR: "/proc/nowhere"}, every_s=0)
    for _ in range(3):
        with times.compute():
            time.sleep(0.001)
        times.end_step()
    assert capsys.readouterr().out.count("cannot be written") == 1


def test_copy_needs_the_standard_library_only(tmp_path: Path) -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    argv = [sys.executable, "-m", "opsctl.integrations", "step-times"]
    copy = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=250).stdout
    (tmp_path / "opsctl_step_times.py").write_text(copy)
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(tmp_path)!r}); import opsctl_step_times",
    ]
    subprocess.run(argv, check=True, env={**os.environ}, timeout=250)
