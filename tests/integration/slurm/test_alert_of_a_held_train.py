"""A bug that ends every attempt at one step, on a real Slurm: one alert, whose command works, until a person acts."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal, actor
from tests.support.trains import Trains, trains_on, until

TRAINER = Path(__file__).with_name("fails_until_repaired.sh").read_text()


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        yield trains


def launch(trains: Trains, *, tasks: int, more: str = "") -> None:
    place = trains.place / "own"
    place.mkdir()
    (place / "train.sh").write_text(TRAINER)
    command = ("bash", str(place / "train.sh"), str(place))
    trains.opsctl("launch", trains.toml(command=command, tasks=tasks, extra=(), more=more))
    until(lambda: read_actions(trains)[-1:] == ["hold-queued"] and all(job.is_held for job in trains.rows()))


def read_actions(trains: Trains) -> list[str]:
    events = Journal(trains.run(), trains.app.clock).events()
    return [event.action for event in events if isinstance(event, AttemptFinalized)]


def read_alerts(trains: Trains) -> str:
    """Return the messages after two more watch cycles."""
    for _ in range(2):
        trains.opsctl("watch", "--once")
    return (trains.root / ".site/alerts/alerts.log").read_text()


def list_subjects(trains: Trains) -> list[str]:
    return re.findall(r"^\d.*\[opsctl\] (.*)$", read_alerts(trains), re.MULTILINE)


CAUSE = "an error in the training program or its settings: KeyError: 'image', twice"


@pytest.mark.parametrize(
    ("in_place", "tasks", "state", "count"),
    [("true", 2, "t is held", "1 task waiting"), ("false", 3, "t has stopped", "no task is queued")],
)
def test_second_equal_failure_makes_one_alert_whose_command_works(
    trains: Trains, in_place: str, tasks: int, state: str, count: str
) -> None:
    launch(trains, tasks=tasks, more=f"restart_in_place = {in_place}")
    assert read_actions(trains) == ["continue", "continue", "hold-queued"]
    assert list_subjects(trains) == [f"CRITICAL: {state}: {CAUSE}; {count}"]
    status = trains.opsctl("status", "t")
    assert "administrator" not in status
    assert ("held" in status) is (state == "t is held")

    (trains.place / "own" / "repaired").touch()
    [command] = re.findall(r"After the repair: opsctl (release t|launch \S+)", read_alerts(trains))
    trains.opsctl(*shlex.split(command))
    assert "critical" not in trains.opsctl("status", "t"), "the alert ends at once"
    verb = "released" if command.startswith("release") else "launched again"
    assert list_subjects(trains)[1:] == [f"RESOLVED: t was {verb} by {actor()}"]
