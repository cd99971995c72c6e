"""The guard waits for space where the trainer saves before it starts the body."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.guard import free_space
from opsctl.guard.free_space import DISK_FULL, await_space, have_filled_disk, is_full
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import replay
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain
from tests.support.made_events import make_diagnosed
from tests.support.mounts import mounting


@pytest.fixture
def disk(tmp_path: Path, train: QueuedTrain) -> Iterator[Path]:
    """A small disk to which the trainer saves."""
    place = tmp_path / "disk"
    place.mkdir()
    text = train.run.config.read_text()
    train.run.config.write_text(text.replace('["true"]', f'["train", "--save", "{place}/own"]'))
    with mounting(place, "size=4m"):
        yield place


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return filler


def crash(train: QueuedTrain, task: int, cause: str) -> None:
    attempt = f"12_{task}.0"
    train.arrays.journal.append(make_diagnosed(attempt=attempt, cause_kind="storage", cause=cause))
    train.arrays.journal.append(AttemptFinalized(attempt=attempt, outcome="crashed", action="continue", why=""))


def wait(train: QueuedTrain, *, look: int, then: object) -> float:
    """Wait for space; call `then` at a look. Return the seconds waited."""
    for task in (1, 2):
        crash(train, task, DISK_FULL)
    attempt = train.start_attempt("12_3.0")
    looks: list[float] = []

    def check_switches() -> None:
        looks.append(train.clock.monotonic())
        if len(looks) == look:
            then()  # type: ignore[operator]  # a function

    begin_s = train.clock.monotonic()
    await_space(train.arrays, attempt, 2, check_switches=check_switches)
    return train.clock.monotonic() - begin_s


@pytest.mark.root
def test_body_waits_until_the_disk_has_space(train: QueuedTrain, disk: Path) -> None:
    assert wait(train, look=1, then=lambda: None) == 0
    filler = fill(disk)
    assert is_full(disk / "own" / "below")
    assert wait(train, look=40, then=filler.unlink) == 40


@pytest.mark.root
def test_wait_for_space_ends_in_time(train: QueuedTrain, disk: Path) -> None:
    fill(disk)
    assert wait(train, look=1, then=lambda: None) == free_space.MAX_WAIT_S


@pytest.mark.root
@pytest.mark.parametrize(("kind", "waited_s"), [(StopKind.TERM, 5), (StopKind.KILL, 5), (StopKind.TIME_LIMIT, 600)])
def test_stop_request_ends_the_wait_for_space(train: QueuedTrain, disk: Path, kind: StopKind, waited_s: float) -> None:
    fill(disk)
    attempt = train.run.attempt("12_3.0")
    assert wait(train, look=5, then=lambda: request_stop(train.run, attempt, kind, "")) == waited_s


@pytest.mark.root
def test_full_disk_of_another_directory_delays_nothing(train: QueuedTrain, disk: Path) -> None:
    fill(disk)
    (train.run.path / "logs").rmdir()
    (train.run.path / "logs").symlink_to(disk)
    text = train.run.config.read_text()
    train.run.config.write_text(text.replace(f"{disk}/own", f"{disk.parent}/elsewhere"))
    assert wait(train, look=1, then=lambda: None) == 0
    assert os.path.realpath(train.run.path / "logs") == str(disk)


@pytest.mark.parametrize(*read_cases(__file__, "guard_waits_for_space_after_two_crashes"))
def test_guard_waits_for_space_after_two_crashes(train: QueuedTrain, causes: list[str], waits: bool) -> None:
    for task, cause in enumerate(causes, start=1):
        crash(train, task, cause)
    assert have_filled_disk(replay(train.arrays.journal.events()), 2) is waits
