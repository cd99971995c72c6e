"""Trains in containers on a real slurmctld: the guard outside, the ranks and their rank wrapper in a real podman."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.guard.end_record import read_end
from opsctl.sandbox.cluster import Sandbox
from tests.support.containers import MARKER, Podman, make_podman
from tests.support.trains import HELD, Trains, trains_on, until

TRAINER = f"""
import os, sys, time
inside = os.path.exists("/{MARKER}")
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"rank {{rank}} of {{world}} inside={{inside}} at {{os.getcwd()}} key={{os.environ['MY_KEY']}}", flush=True)
open(os.environ["TRAIN_CHECKPOINT_DIR"] + "/saved-" + rank, "w").close()
if sys.argv[1] != "wait":
    sys.exit(int(sys.argv[1]))
while not os.path.exists(os.environ["TRAIN_STOP_REQUEST"]):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    return make_podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture
def trains(slurm: Sandbox, podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trains]:
    for name, value in podman.env.items():
        monkeypatch.setenv(name, value)
    with trains_on(slurm) as trains:
        yield trains
    until(lambda: podman.list_containers() == [])


def write(trains: Trains, podman: Podman, argument: str, **slurm: Any) -> Path:
    code = trains.place / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAINER)
    more = f"""[environment]
MY_KEY = 'a b'
[setup]
directory = '{code}'
freeze = 'copy'
[container]
runtime = 'podman'
image = '{podman.image}'
"""
    command = ("python3", "train.py", argument)
    return trains.toml(command=command, more=more, nodes=2, tasks=1, extra=(), **slurm)


def read_log(trains: Trains) -> str:
    log = trains.run().main_log
    return log.read_text() if log.exists() else ""


@pytest.mark.root
def test_ranks_run_inside_and_their_exit_code_is_recorded(trains: Trains, podman: Podman) -> None:
    trains.opsctl("launch", write(trains, podman, "7"))
    until(lambda: not trains.rows())
    lines = [line for line in read_log(trains).splitlines() if "inside=" in line]
    (code,) = (trains.run().path / "code").iterdir()
    assert sorted(lines) == [
        f"[node001:0]: rank 0 of 2 inside=True at {code} key=a b",
        f"[node002:1]: rank 1 of 2 inside=True at {code} key=a b",
    ], read_log(trains)
    (attempt,) = trains.run().attempts()
    assert attempt.body_exit.read_text() == "7\n"
    assert sorted(os.listdir(trains.run().checkpoints)) == ["saved-0", "saved-1"]


@pytest.mark.root
def test_kill_switch_reaches_the_trainer_inside(trains: Trains, podman: Podman) -> None:
    trains.opsctl("launch", write(trains, podman, "wait"))
    until(lambda: read_log(trains).count("inside=True") == 2)
    trains.opsctl("kill-switch", "arm", "t", "--reason", "to test")
    until(lambda: not trains.rows())
    (attempt,) = trains.run().attempts()
    end = until(lambda: read_end(attempt))
    assert end.outcome.value == "killed", read_log(trains)


@pytest.mark.root
def test_cancelled_train_leaves_no_container(trains: Trains, podman: Podman) -> None:
    """None that runs: where Slurm kills podman before its clean-up, an exited one stays listed."""
    trains.opsctl("launch", write(trains, podman, "wait"))
    until(lambda: read_log(trains).count("inside=True") == 2)
    until(lambda: len(podman.list_containers()) == 2)
    trains.opsctl("cancel", "t")
    until(lambda: not trains.rows())
    until(lambda: podman.list_containers() == [])


def test_unknown_runtime_is_a_note_and_a_missing_image_an_error(trains: Trains) -> None:
    container = "[container]\nruntime = 'pyxis'\nimage = '{}'"
    path = trains.toml(more=container.format("/gone.sqsh"), command=("not-on-this-machine.py",), extra=HELD)
    error = trains.refusal("launch", path)
    assert error.message.count("does not exist") == 1
    assert "[container] image = /gone.sqsh does not exist" in error.message
    image = trains.place / "i.sqsh"
    image.touch()
    trains.toml(more=container.format(image), command=("not-on-this-machine.py",), extra=HELD)
    findings = json.loads(trains.opsctl("preflight", path, "--json"))["findings"]
    notes = [finding for finding in findings if finding["check"] == "container"]
    assert [finding for finding in findings if finding["check"] == "files"] == []
    assert [(note["severity"], "--container-image" in note["what"]) for note in notes] == [("note", True)]
