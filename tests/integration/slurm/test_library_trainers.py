"""Trainers of real libraries with opsctl_contract.py beside them, on two nodes of a real Slurm.

Each library goes through a requested save, a pause, a dead node, the signal before a time limit and the end of the
training; through a kill switch; and through a real time limit.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from opsctl.base.ports import TimedOut
from opsctl.integrations import opsctl_contract
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from tests.support.trains import Trains, trains_on, until

TRAINERS = Path(__file__).parents[2] / "support" / "library_trainers"
STEPS = 1000
LIBRARIES = {
    "hf": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "trl": ("trl", "datasets"),
    "torchtitan": ("torchtitan", "datasets"),
}
"""By trainer: the libraries that its script imports. TRL shares the callback with transformers."""

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


def launch(trains: Trains, name: str, **slurm: object) -> None:
    """Launch the trainer `name` on two nodes, slowed down, with a copy of the contract beside its script."""
    for path in (TRAINERS / f"{name}_trainer.py", TRAINERS / "pace.py", Path(opsctl_contract.__file__)):
        shutil.copy(path, trains.place)
    (trains.place / "slow").touch()
    command = (sys.executable, str(trains.place / f"{name}_trainer.py"), str(trains.place), str(STEPS))
    environment = '[environment]\nOMP_NUM_THREADS = "1"\nHF_HUB_OFFLINE = "1"\nGLOO_SOCKET_IFNAME = "lo"'
    table = {"extra": (), "nodes": 2, "tasks": 5, "time_limit": "30", "memory_per_node": "", **slurm}
    config = trains.toml(command=command, **table)
    config.write_text(config.read_text() + "short_attempt_minutes = 0.01\n" + environment)
    trains.opsctl("launch", config)


def read_steps(trains: Trains) -> dict[str, list[int]]:
    """Return the steps of each attempt."""
    steps: dict[str, list[int]] = {}
    path = trains.place / "steps"
    for line in path.read_text().splitlines() if path.exists() else ():
        attempt, step = line.split()
        steps.setdefault(attempt, []).append(int(step))
    return steps


def wait_for_attempt(trains: Trains, number: int) -> str:
    """Wait until the attempt with this number, from 1, trains; return its node list."""

    def is_training() -> bool:
        log = trains.run().main_log
        ended = len(read_outcomes(trains)) >= number
        assert not ended, (read_outcomes(trains), log.read_text()[-4000:])
        return len(read_steps(trains)) == number and len(list(read_steps(trains).values())[-1]) > 30

    until(is_training, seconds=200)
    return next(job.nodes for job in trains.rows() if job.state.is_active)


def read_outcomes(trains: Trains) -> list[str]:
    events = Journal(trains.run(), trains.app.clock).events()
    return [event.outcome for event in events if isinstance(event, AttemptFinalized)]


@pytest.fixture(params=LIBRARIES)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a trainer whose libraries are installed."""
    for library in LIBRARIES[request.param]:
        pytest.importorskip(library, reason=f"needs {library}: make integrations")
    return str(request.param)


def list_saved_steps(trains: Trains) -> set[int]:
    """Return the steps in the names of the checkpoints."""
    names = [path.name for path in trains.run().checkpoints.rglob("*")]
    found = [re.fullmatch(r"(?:.*step|checkpoint)[-=](\d+)(?:\.ckpt)?", name) for name in names]
    return {int(match[1]) for match in found if match}


def test_library_trainer_survives_faults_and_finishes(name: str, fresh_slurm: Callable[..., Sandbox]) -> None:
    slurm = fresh_slurm(nodes=3, gpus_per_node=0)
    with trains_on(slurm) as trains:
        launch(trains, name)
        wait_for_attempt(trains, 1)
        trains.opsctl("save-switch", "t")
        until(lambda: not (trains.run().switches / "save").exists())
        saved_at = read_steps(trains)[next(iter(read_steps(trains)))][-1]
        trains.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "look at the loss")
        until(lambda: read_outcomes(trains) == ["paused"])
        trains.opsctl("release", "t")

        nodes = wait_for_attempt(trains, 2)
        slurm.fault(nodes.replace("[", "").partition("-")[0].partition(",")[0], FaultKind.CRASH)

        wait_for_attempt(trains, 3)
        [job] = [job for job in trains.rows() if job.state.is_active and job.attempt == list(read_steps(trains))[-1]]
        with suppress(TimedOut):  # as Slurm does `signal_seconds` before the time limit
            trains.app.runner.run(("scancel", "--batch", "--signal=USR1", job.full_id), timeout=2)

        until(lambda: len(read_steps(trains)) == 4, seconds=200)
        (trains.place / "slow").unlink()
        until(lambda: not trains.rows(), seconds=400)
        trains.opsctl("watch", "--once")
        until(lambda: len(read_outcomes(trains)) == 4)

        first, second, third, fourth = read_steps(trains).values()
        assert second[0] == first[-1] + 1, "the pause saved the last step"
        assert saved_at <= first[-1]
        assert third[0] > second[0], "the checkpoints before the crash count"
        assert fourth[0] == third[-1] + 1, "the time limit saved the last step"
        assert fourth[-1] == STEPS
        ends = [trains.run().attempt(attempt).end for attempt in read_steps(trains)]
        outcomes = [json.loads(end.read_text())["outcome"] for end in ends]
        assert outcomes[1] in {"node-failed", "lost"}
        assert [outcomes[0], *outcomes[2:]] == ["paused", "stopped", "finished"]


def test_kill_switch_saves_and_cancels(name: str, fresh_slurm: Callable[..., Sandbox]) -> None:
    slurm = fresh_slurm(nodes=2, gpus_per_node=0)
    with trains_on(slurm) as trains:
        launch(trains, name)
        wait_for_attempt(trains, 1)
        trains.opsctl("kill-switch", "arm", "t", "--reason", "wrong data")
        until(lambda: read_outcomes(trains) == ["killed"])
        [steps] = read_steps(trains).values()
        assert steps[-1] in list_saved_steps(trains)
        until(lambda: not trains.rows())


def test_near_time_limit_saves_and_the_next_task_goes_on(name: str, fresh_slurm: Callable[..., Sandbox]) -> None:
    slurm = fresh_slurm(nodes=2, gpus_per_node=0)
    with trains_on(slurm) as trains:
        launch(trains, name, time_limit="2", signal_seconds=60)
        until(lambda: len(read_steps(trains)) == 2, seconds=200)
        assert read_outcomes(trains) == ["stopped"]
        first, second = read_steps(trains).values()
        assert second[0] == first[-1] + 1
        trains.opsctl("cancel", "t")
