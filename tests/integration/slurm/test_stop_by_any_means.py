"""Stop trainers that read the stop request, listen to a signal, or do neither, on a real Slurm."""

import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.base.ports import TimedOut
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import StopStep
from opsctl.state.journal import Journal
from tests.support.slurms import Up
from tests.support.trains import HELD, Trains, trains_on, until

LISTENER = """
trap 'trap "" {signal}; touch "$1/saved"; exit 0' {signal}
touch "$1/up"
while :; do sleep 0.1; done
"""
"""The trap is taken back: without cgroups, a signal to a step arrives by Slurm and by the rank wrapper."""
DEAF = """
trap '' TERM USR1 INT
touch "$1/up"
while :; do sleep 0.1; done
"""


def start(trains: Trains, script: str, guard: str) -> Path:
    """Launch a train that runs `script` and wait until its trainer runs."""
    path = trains.place / "train.sh"
    path.write_text(script)
    command = ("bash", str(path), str(trains.place))
    trains.opsctl("launch", trains.toml(command=command, more=guard, extra=()))
    until((trains.place / "up").exists)
    return trains.place


def steps(trains: Trains) -> list[str]:
    events = Journal(trains.run(), trains.app.clock).events()
    return [event.step for event in events if isinstance(event, StopStep)]


def end(trains: Trains) -> dict[str, str]:
    until(lambda: not trains.rows())
    [path] = until(lambda: list(trains.run().path.glob("attempts/*/end.json")))
    return json.loads(path.read_text())  # type: ignore[no-any-return]  # end.json is an object


@pytest.mark.parametrize("signal", ["TERM", "USR1"])
def test_trainer_that_listens_to_a_signal_saves(trains: Trains, signal: str) -> None:
    more = "stop_after_seconds = 1\nstop_grace_seconds = 30" + ("\nstop_signal = 'USR1'" if signal == "USR1" else "")
    place = start(trains, LISTENER.format(signal=signal), more)
    text = trains.opsctl("kill-switch", "arm", "t", "--reason", "bad loss")
    assert "cancelled the queued tasks of array" in text
    assert f"if it does not react, SIG{signal} follows after 1 s and its ranks are ended after 31 s" in text
    assert end(trains)["outcome"] == "killed"
    assert (place / "saved").exists()
    assert steps(trains) == ["requested", f"SIG{signal}"]


def test_trainer_that_reacts_to_nothing_is_ended(trains: Trains) -> None:
    start(trains, DEAF, "stop_after_seconds = 1\nstop_grace_seconds = 3")
    trains.opsctl("kill-switch", "arm", "t", "--reason", "bad loss")
    assert len(trains.rows()) == 1, "the queued tasks are cancelled at once"
    until(lambda: "SIGTERM" in steps(trains))
    assert "no reaction so far, SIGTERM" in " ".join(trains.opsctl("status", "t").split())
    assert end(trains)["outcome"] == "killed"
    assert steps(trains) == ["requested", "SIGTERM", "killed"]


def test_pause_holds_the_queue_at_once(trains: Trains) -> None:
    start(trains, LISTENER.format(signal="TERM"), "stop_after_seconds = 1")
    text = trains.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "maintenance")
    assert "held the queued tasks of array" in text
    assert [job.is_held for job in trains.rows() if job.state.is_waiting] == [True]
    until(lambda: all(job.is_held for job in trains.rows()))
    assert trains.run().attempts()[0].end.exists()


@pytest.mark.parametrize("extra", [HELD, ("--begin=now+1hour",)], ids=["held", "between two tasks"])
def test_kill_switch_cancels_a_queue_without_a_task(trains: Trains, extra: tuple[str, ...]) -> None:
    trains.opsctl("launch", trains.toml(extra=extra))
    text = trains.opsctl("kill-switch", "arm", "t", "--reason", "wrong data")
    assert text.startswith("t: the kill switch is armed: cancelled the queued tasks of array ")
    assert trains.rows() == []


@pytest.mark.long
def test_kill_switch_works_while_the_node_of_the_guard_is_dead(fresh_slurm: Up) -> None:
    slurm = fresh_slurm(nodes=1)
    with trains_on(slurm) as trains:
        start(trains, DEAF, "stop_after_seconds = 1\nstop_grace_seconds = 2")
        slurm.fault("node001", FaultKind.CRASH)
        trains.opsctl("kill-switch", "arm", "t", "--reason", "bad loss")
        assert len(trains.rows()) == 1, "the queued tasks are cancelled at once"
        until(lambda: not trains.rows())
        assert len(trains.run().attempts()) == 1


def test_pause_of_a_held_queue_says_so(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(extra=HELD))
    text = trains.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "maintenance")
    assert text == "t: the pause switch is armed: the queued tasks are held already\n"


@pytest.mark.parametrize("command", [("watch",), ("status",), ("hold", "t")])
def test_armed_switch_of_a_team_member_is_applied_by_the_next_command(trains: Trains, command: tuple[str, ...]) -> None:
    trains.opsctl("launch", trains.toml(extra=HELD))
    (trains.run().switches / "kill").touch()
    with suppress(InputError):  # nothing is left to hold
        trains.opsctl(*command)
    assert trains.rows() == []


def test_save_switch_of_an_ended_train_is_refused(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml(extra=HELD))
    trains.opsctl("cancel", "t")
    error = trains.refusal("save-switch", "t")
    assert (error.message, error.exit_code) == ("t: nothing is running or queued, so no task would save", 2)
    assert not (trains.run().switches / "save").exists()


def test_signal_reaches_a_trainer_before_the_time_limit(trains: Trains) -> None:
    place = start(trains, LISTENER.format(signal="TERM"), "stop_after_seconds = 0\nstop_signal = 'TERM'")
    [job] = [job for job in trains.rows() if job.state.is_active]
    trains.app.runner.run(("scancel", "--batch", "--signal=USR1", job.full_id), timeout=250)
    until((place / "saved").exists)
    assert (
        json.loads(until(lambda: list(trains.run().path.glob("attempts/*/end.json")))[0].read_text())["outcome"]
        == "stopped"
    )


def test_trainer_that_ignores_a_time_limit_is_not_signalled(trains: Trains) -> None:
    start(trains, DEAF, "stop_after_seconds = 0")
    [job] = [job for job in trains.rows() if job.state.is_active]
    with subprocess.Popen(("scancel", "--batch", "--signal=USR1", job.full_id)) as scancel:
        until(lambda: steps(trains))
        scancel.kill()  # it repeats the signal until the job ends
    time.sleep(1)  # ten polls of the guard
    assert steps(trains) == ["requested"]


def test_trainer_that_a_person_signals_is_not_finished(trains: Trains) -> None:
    start(trains, LISTENER.format(signal="TERM"), "")
    [job] = [job for job in trains.rows() if job.state.is_active]
    trains.app.runner.run(("scancel", "--signal=TERM", f"{job.id}.0"), timeout=250)
    [path] = until(lambda: list(trains.run().path.glob("attempts/*_1.0/end.json")))
    ended = json.loads(path.read_text())
    assert ended["outcome"] in {"exited", "stopped"}, path.read_text() + trains.run().main_log.read_text()
    assert ended["action"] == "continue"


@pytest.mark.parametrize(
    ("options", "code", "outcomes"),
    [
        (("--signal=TERM",), 0, {"stopped"}),
        (("--signal=TERM",), 1, {"cancelled"}),
        ((), 1, {"cancelled", "crashed"}),
    ],
)
def test_step_that_slurm_ends_goes_on(trains: Trains, options: tuple[str, ...], code: int, outcomes: set[str]) -> None:
    """Before a preemption with a grace time, Slurm signals the steps of a job, and not its batch script.

    On a busy machine, the exit of a rank may come to the log before the line of slurmstepd; then it counts as a crash.
    """
    start(trains, LISTENER.format(signal="TERM").replace("exit 0", f"exit {code}"), "")
    [job] = [job for job in trains.rows() if job.state.is_active]
    with suppress(TimedOut):
        trains.app.runner.run(("scancel", *options, f"{job.id}.0"), timeout=5)
    ended = until(lambda: [attempt.end for attempt in trains.run().attempts() if attempt.end.exists()])
    assert json.loads(ended[0].read_text())["outcome"] in outcomes
    assert json.loads(ended[0].read_text())["action"] == "continue"
