"""The guard ends attempts that certainly hang, and no others, on a real Slurm."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from opsctl.guard.quiet_ranks import read_marks
from opsctl.state.events import StopStep
from opsctl.state.journal import Journal
from tests.support.trains import Trains, until

TRAINER = """
import os, sys, time
from pathlib import Path

place, stands_at = Path(sys.argv[1]), int(sys.argv[2])
(place / "pid").write_text(str(os.getpid()))
for step in range(1, 100_000):
    print(f"iteration {step}/ 100000 | lm loss: 2.0E+00 |", flush=True)
    if step == 10:
        (place / "up").touch()
    time.sleep(1000 if step == stands_at else 0.1)
"""
QUICK = "short_attempts = 9"


def start(trains: Trains, guard: str, *, stands_at: int = 0) -> int:
    """Launch a train, wait until it trains, and return the process of its rank."""
    path = trains.place / "train.py"
    path.write_text(TRAINER)
    command = (sys.executable, str(path), str(trains.place), str(stands_at))
    trains.opsctl("launch", trains.toml(command=command, more=guard, extra=()))
    until((trains.place / "up").exists)
    return int((trains.place / "pid").read_text())


def first_end(trains: Trains) -> dict[str, str]:
    [path] = until(lambda: list(trains.run().path.glob("attempts/*_1.0/end.json")))
    return json.loads(path.read_text())  # type: ignore[no-any-return]  # end.json is an object


def find_evidence(trains: Trains) -> list[Path]:
    return list(trains.run().path.glob("attempts/*_1.0/evidence/hang-*/py-spy.txt"))


def test_attempt_with_a_stopped_rank_is_ended(trains: Trains) -> None:
    pid = start(trains, f"{QUICK}\nquiet_seconds = 3")
    os.kill(pid, signal.SIGSTOP)
    end = first_end(trains)
    assert end["outcome"] == "hung"
    assert "stopped by a signal (state T): rank 0 on node00" in end["why"]
    events = Journal(trains.run(), trains.app.clock).events()
    assert [event.step for event in events if isinstance(event, StopStep)] == ["requested"]
    until(lambda: len(list(trains.run().path.glob("attempts/*_1.1/start.json"))) == 1)
    [evidence] = find_evidence(trains)
    assert "== node node001 rank 0" in evidence.read_text()


def test_attempt_whose_ranks_wait_is_ended(trains: Trains) -> None:
    start(trains, f"{QUICK}\nquiet_seconds = 3", stands_at=30)
    assert "no rank uses the CPU" in first_end(trains)["why"]


@pytest.mark.long
def test_stopped_rank_is_left_alone_with_0_seconds(trains: Trains) -> None:
    pid = start(trains, f"{QUICK}\nquiet_seconds = 0")
    os.kill(pid, signal.SIGSTOP)
    [logs] = trains.run().logs.glob("*.0")
    until(lambda: read_marks(logs / "quiet") == ([0], True))
    os.kill(pid, signal.SIGCONT)
    until(lambda: read_marks(logs / "quiet") == ([], False))
    assert not list(trains.run().path.glob("attempts/*_1.0/end.json"))
