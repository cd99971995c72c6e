"""`opsctl.Train` on a real slurmctld, and the example of the README."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import opsctl
from opsctl.state.events import SwitchArmed
from tests.support.trains import HELD, Trains, until

ROOT = Path(__file__).parents[3]
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COUNT = """
for ((step = 1; ; step++)); do
  echo " iteration $step/500 | elapsed time per iteration (ms): 100.0 | lm loss: 2.5 |"; sleep 0.1
  [ -e "$TRAIN_STOP_REQUEST" ] && exit 0
done
"""


def make(trains: Trains, command: tuple[str, ...] = ("true",), **more: Any) -> opsctl.Train:
    slurm = {"memory_per_node": "10", **more.pop("slurm", {})}
    guard = {"poll_seconds": 0.1, **more.pop("guard", {})}
    return opsctl.Train(
        "t", command=command, nodes=1, time_limit="5", tasks=2, slurm=slurm, guard=guard, site=trains.site, **more
    )


@pytest.mark.long
def test_readme_example_runs(trains: Trains) -> None:
    (example,) = EXAMPLE.findall((ROOT / "README.md").read_text())
    assert len([line for line in example.splitlines() if line]) <= 10
    env = {**os.environ, "OPSCTL_SITE": str(trains.site)}
    argv = [sys.executable, "-P", "-c", example]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    progress, *logs, last = done.stdout.splitlines()
    assert re.match(r"Progress\(.*\bstep=\d+, last_step=60", progress)
    assert [line for line in logs if "lm loss" in line], done.stdout
    assert re.fullmatch(r"ended kill switch by \w+: the example has counted enough 0\.\d+", last)


def test_train_from_arguments_is_recorded_as_toml(trains: Trains) -> None:
    train = make(trains, environment={"A_B": 'quo"te\n'}, slurm={"extra": list(HELD)})
    submitted = train.launch()
    assert trains.arrays() == {submitted.array}
    recorded = tomllib.loads(trains.run().config.read_text())
    assert recorded["command"] == ["true"]
    assert recorded["environment"] == {"A_B": 'quo"te\n'}
    assert opsctl.Train.find("t", site=trains.site).settings == train.settings


def test_paths_and_numbers_become_texts(trains: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trains.site.parent)
    train = opsctl.Train(
        "t",
        command=[Path("/bin/echo"), "--steps", 5, "--lr", 0.1],
        nodes=1,
        time_limit="5",
        environment={"OMP_NUM_THREADS": 1, "DATA": Path("/data")},
        setup={"directory": Path("/tmp")},
        progress={"checkpoint_directories": [Path("/ckpt")]},
        site=trains.site.name,
    )
    monkeypatch.chdir("/")
    recorded = tomllib.loads(train.config)
    assert recorded["command"] == ["/bin/echo", "--steps", "5", "--lr", "0.1"]
    assert recorded["environment"] == {"OMP_NUM_THREADS": "1", "DATA": "/data"}
    assert (recorded["setup"], recorded["progress"]) == (
        {"directory": "/tmp"},
        {"checkpoint_directories": ["/ckpt"]},
    )
    assert train.run_dir == trains.root / "t"


@pytest.mark.parametrize("command", ["python train.py", Path("train.sh")])
def test_command_in_one_text_is_refused(command: Any) -> None:
    with pytest.raises(opsctl.errors.ConfigError, match="is one text, not a list"):
        opsctl.Train("t", command=command, nodes=1, time_limit="5")


def test_plan_changes_nothing(trains: Trains) -> None:
    plan = make(trains).plan(tasks=7)
    assert plan.spec.tasks == 7
    assert "srun --kill-on-bad-exit=1" in plan.body
    assert (trains.root.exists(), trains.arrays()) == (False, set())


def test_invalid_train_lists_every_problem(trains: Trains) -> None:
    with pytest.raises(opsctl.errors.ConfigError) as caught:
        opsctl.Train("t", command=["true"], nodes=0, time_limit="soon", site=trains.site, colour="red")
    assert len(caught.value.problems) == 3


def test_second_launch_is_refused(trains: Trains) -> None:
    train = make(trains, slurm={"extra": list(HELD)})
    train.launch()
    with pytest.raises(opsctl.errors.InputError, match="is queued already"):
        train.launch()


def test_train_that_was_never_launched_has_no_status(trains: Trains) -> None:
    with pytest.raises(opsctl.errors.InputError, match="no train"):
        make(trains).status()


def test_wait_ends_with_the_train(trains: Trains) -> None:
    train = make(trains, ("bash", "-c", "echo rank $RANK speaks; echo Training completed"))
    train.launch()
    status = train.wait(250, poll_s=0.2)
    assert status.state in {"ended", "finished"}
    assert "rank 0 speaks" in train.logs(rank=0)


def test_wait_ends_with_a_held_train(trains: Trains) -> None:
    train = make(trains, slurm={"extra": list(HELD)})
    train.launch()
    assert train.wait(250).state == "held"


def test_killed_train_is_explained_and_reported(trains: Trains) -> None:
    train = make(trains, ("bash", "-c", COUNT))
    train.launch()
    with pytest.raises(opsctl.errors.WaitTimedOut):
        train.wait(0.5, poll_s=0.1)
    until(lambda: (progress := train.status().progress) and progress.step)
    result = train.kill("enough")
    assert not result.was_armed
    assert result.text.startswith("the kill switch is armed: ")
    assert "the running task is asked to save and stop" in result.text
    assert train.wait(250, poll_s=0.2).state == "ended"
    assert train.why().says.endswith("enough")
    assert (train.report().step or 0) > 0
    assert SwitchArmed in trains.kinds()


def test_queue_is_held_released_and_cancelled(trains: Trains) -> None:
    train = make(trains, ("sleep", "60"), slurm={"extra": list(HELD)})
    array = train.launch().array
    assert train.hold("to test") == [array]
    assert train.status().state == "held"
    assert not train.pause("also to test").was_armed
    assert train.pause("again").was_armed
    released = train.release(exclude="node004")
    assert released is not None
    assert (released.arrays, released.excluded) == ([array], "node004")
    assert train.cancel() == [array]
    until(lambda: not trains.rows())
    with pytest.raises(opsctl.errors.InputError, match="no task would save"):
        train.save()


def test_kill_returns_the_steps_that_were_applied(trains: Trains) -> None:
    train = make(trains, slurm={"extra": list(HELD)})
    train.launch()
    result = train.kill("not needed")
    assert len(result.done) == 1
    assert result.text == f"the kill switch is armed: {result.done[0]}"
    assert result.data == {"switch": "kill", "was_armed": False, "done": list(result.done)}
    until(lambda: not trains.rows())


def test_methods_work_in_a_thread_with_an_event_loop(trains: Trains) -> None:
    train = make(trains, ("bash", "-c", COUNT))

    async def steer() -> tuple[str, str]:
        train.launch()
        until(lambda: (progress := train.status().progress) and progress.step)
        running = train.status().state
        train.kill("enough")
        return running, train.wait(250, poll_s=0.2).state

    with ThreadPoolExecutor(1) as pool:
        states = pool.submit(lambda: asyncio.run(steer())).result(timeout=500)
    assert states == ("running", "ended")


def test_methods_print_nothing_and_keep_signal_handlers(
    trains: Trains, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    train = make(trains, slurm={"extra": list(HELD)})
    train.launch()
    train.status()
    train.hold()
    train.cancel()
    assert capfd.readouterr() == ("", "")
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_report_refuses_a_time_without_zone(trains: Trains) -> None:
    train = make(trains, slurm={"extra": list(HELD)})
    train.launch()
    with pytest.raises(opsctl.errors.InputError):
        train.report(since=datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake under test
