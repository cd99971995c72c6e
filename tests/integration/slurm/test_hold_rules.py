"""A foreign trainer with a checkpoint path of its own, on a real Slurm: which histories hold the train."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.base.findings import Severity
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from opsctl.watchdogs.failures import failures
from tests.support.cases import read_cases, read_table
from tests.support.mounts import mounting
from tests.support.trains import Trains, until

TRAINER = read_table(__file__, "trainer")
SAVER = read_table(__file__, "saver")

TUTORIAL: str = read_table(__file__, "tutorial")


def launch(trains: Trains, *, saves: bool) -> None:
    """Launch a train whose every task makes three steps and fails, until the twelfth step is done."""
    place = trains.place / "own"
    place.mkdir()
    if saves:
        (place / "saves").touch()
    (place / "train.sh").write_text(TRAINER)
    command = ("bash", str(place / "train.sh"), str(place))
    trains.opsctl("launch", trains.toml(command=command, tasks=6, extra=()))


def wait(trains: Trains) -> list[tuple[str, str]]:
    """Wait until no task can start by itself. Return outcome and action of every attempt."""
    until(lambda: all(job.is_held for job in trains.rows()))
    events = Journal(trains.run(), trains.app.clock).events()
    return [(event.outcome, event.action) for event in events if isinstance(event, AttemptFinalized)]


def test_train_that_saves_elsewhere_is_not_held(trains: Trains) -> None:
    launch(trains, saves=True)
    assert wait(trains) == [("crashed", "continue")] * 3 + [("finished", "cancel-queued")]


def test_train_that_saves_nothing_is_held(trains: Trains) -> None:
    launch(trains, saves=False)
    assert wait(trains) == [("crashed", "continue")] * 3 + [("crashed", "hold-queued")]
    assert "before a release" in trains.opsctl("status", "t")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk, filled by a file."""
    with mounting(tmp_path, "size=64k,mode=755"):
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "filler").write_bytes(bytes(1 << 20))
        yield tmp_path


@pytest.mark.root
def test_disk_that_is_full_for_a_while_holds_no_train(trains: Trains, full_disk: Path) -> None:
    script = trains.place / "train.sh"
    script.write_text(SAVER)
    command = ("bash", str(script), "--save", str(full_disk))
    trains.opsctl("launch", trains.toml(command=command, tasks=6, extra=()))
    log = trains.run().main_log
    until(lambda: log.exists() and "the disk is full" in log.read_text())
    (full_disk / "filler").unlink()
    assert wait(trains) == [("crashed", "continue")] * 2 + [("finished", "cancel-queued")]


@pytest.mark.parametrize(*read_cases(__file__, "program_without_any_sign_of_training_holds_the_train"))
def test_program_without_any_sign_of_training_holds_the_train(trains: Trains, script: str, why: str) -> None:
    trains.opsctl("launch", trains.toml(command=("bash", "-c", script), tasks=3, extra=()))
    assert wait(trains) == [("idle", "hold-queued")]
    [finding] = failures(trains.run(), Journal(trains.run(), trains.app.clock).events(), datetime.now(UTC))
    assert (finding.severity, why in finding.summary) == (Severity.CRITICAL, True)


def test_ddp_tutorial_that_is_killed_from_outside_is_not_held(trains: Trains) -> None:
    """The trainer names epochs alone, and saves to its working directory."""
    (trains.place / "train.sh").write_text(TUTORIAL)
    command = ("bash", str(trains.place / "train.sh"), str(trains.place))
    trains.opsctl("launch", trains.toml(command=command, tasks=6, extra=()))
    assert wait(trains) == [("crashed", "continue")] * 3 + [("finished", "cancel-queued")]
    assert "epoch 11" in trains.opsctl("status", "t")
