"""One list of the queue for all viewers of a user: who asks Slurm, and who reads what others stored."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opsctl.base.errors import Unreachable
from opsctl.base.ports import Completed
from opsctl.launch.shared_queue import MAX_AGE_S, SharedQueue
from opsctl.slurm.commands import Slurm
from opsctl.slurm.parse_output import SQUEUE_FIELDS
from opsctl.state.lease import lease
from tests.support.clocks import FakeClock
from tests.support.finalized_trains import BEGIN


@dataclass
class Controller:
    """Answers squeue with one job, whose name says how often squeue was called."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(BEGIN))
    squeues: int = 0
    is_down: bool = False
    refused: int = 0
    takes_s: float = 0.0
    marks: list[str] = field(default_factory=list)

    def run(self, argv, *, timeout, stdin="", env=None):
        self.clock.sleep(self.takes_s)
        if self.is_down:
            self.refused += 1
            return Completed(argv=argv, code=1, out="", err="Unable to contact slurm controller (connect failure)")
        self.squeues += 1
        mark = argv[-1].partition("JobID:0")[2].partition(",")[0]
        self.marks.append(mark)
        row = {"JobID": "12", "ArrayJobID": "12", "State": "RUNNING", "Name": f"{self.squeues}"}
        return Completed(
            argv=argv, code=0, out="".join(row.get(name, "") + mark for name in SQUEUE_FIELDS) + "\n", err=""
        )


@dataclass
class Viewers:
    """Viewers, each with the objects of a process of its own."""

    place: Path
    controller: Controller = field(default_factory=Controller)

    def read(self) -> str:
        """Return the name of the job that a viewer shows."""
        [job] = self.queue.read()
        return job.name

    @property
    def queue(self) -> SharedQueue:
        return SharedQueue(Slurm(self.controller), self.controller.clock, self.place, 30)


@pytest.fixture
def viewers(tmp_path: Path) -> Viewers:
    return Viewers(tmp_path)


def test_viewers_of_a_user_ask_once_in_the_age_of_a_list(viewers: Viewers) -> None:
    for _ in range(60):
        for _ in range(12):
            viewers.read()
        viewers.controller.clock.sleep(10)
    assert viewers.controller.squeues <= 20


BROKEN: list[Callable[[Path], object]] = [
    lambda path: path.write_text("{}"),
    lambda path: path.write_text(""),
    lambda path: path.write_text("nan 1 x\n"),
    lambda path: path.write_text("inf nan x\n"),
    lambda path: path.chmod(0o622),
    lambda path: path.write_bytes(b"\xff"),
    lambda path: path.unlink() or path.symlink_to("/etc/passwd"),
    lambda path: path.unlink() or os.mkfifo(path),
]


@pytest.mark.parametrize("break_list", BROKEN, ids=range(len(BROKEN)))
def test_broken_list_is_read_anew(viewers: Viewers, break_list: Callable[[Path], object]) -> None:
    viewers.read()
    break_list(viewers.place / "list")
    assert viewers.read() == "2"


def test_list_of_the_future_is_not_believed(viewers: Viewers) -> None:
    viewers.read()
    viewers.controller.clock.sleep(-3600)
    assert viewers.read() == "2"


def test_list_of_another_user_is_not_believed(viewers: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    viewers.read()
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert viewers.read() == "2"


def test_change_by_a_viewer_is_shown_at_once(viewers: Viewers) -> None:
    viewers.read()
    viewers.queue.forget()
    assert viewers.read() == "2"


@pytest.mark.parametrize(("takes_s", "age_s"), [(0, 30), (4, 30), (20, 100), (60, MAX_AGE_S)])
@pytest.mark.parametrize("is_down", [False, True])
def test_slow_controller_is_asked_less_often(viewers: Viewers, takes_s: float, age_s: float, *, is_down: bool) -> None:
    controller = viewers.controller
    controller.takes_s, controller.is_down = takes_s, is_down
    with contextlib.suppress(Unreachable):
        viewers.read()
    asked = controller.squeues + controller.refused
    controller.clock.sleep(age_s - takes_s - 1)
    with contextlib.suppress(Unreachable):
        viewers.read()
    assert controller.squeues + controller.refused == asked
    controller.clock.sleep(2)
    with contextlib.suppress(Unreachable):
        viewers.read()
    assert controller.squeues + controller.refused == asked + 1


def test_viewer_knows_the_time_of_its_list(viewers: Viewers) -> None:
    viewers.read()
    viewers.controller.clock.sleep(25)
    queue = viewers.queue
    queue.read()
    assert queue.at == BEGIN


def test_lists_have_marks_of_their_own(viewers: Viewers) -> None:
    """A job's name may contain the mark of a list that its user has seen."""
    for _ in range(3):
        viewers.read()
        viewers.controller.clock.sleep(31)
    assert len(set(viewers.controller.marks)) == 3


def test_viewers_pause_together_while_slurm_is_silent(viewers: Viewers) -> None:
    viewers.controller.is_down = True
    for _ in range(10):
        with pytest.raises(Unreachable, match=r"Unable to contact slurm controller|has not answered"):
            viewers.read()
    assert viewers.controller.refused == 1
    viewers.controller.is_down = False
    viewers.controller.clock.sleep(31)
    assert viewers.read() == "1"


def test_lease_of_another_viewer_is_waited_for_but_not_for_ever(viewers: Viewers) -> None:
    viewers.read()
    viewers.controller.clock.sleep(60)
    with lease(viewers.place, viewers.controller.clock):
        assert viewers.read() == "2"


def test_missing_place_costs_the_sharing_alone(viewers: Viewers) -> None:
    viewers.place /= "file"
    viewers.place.touch()
    assert [viewers.read(), viewers.read()] == ["1", "2"]
