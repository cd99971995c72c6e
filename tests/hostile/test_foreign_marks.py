"""Files that other users make where the guard and `opsctl rollback` write and read."""

import os
from pathlib import Path

import pytest

from opsctl.base.errors import RunDirError
from opsctl.checkpoints.newer_checkpoints import bring_back, set_aside
from opsctl.guard.quiet_ranks import read_marks
from opsctl.guard.rank_activity import Activity
from tests.support.hostile_users import OWNER, STRANGER


def mark(marks: Path, kind: str) -> None:
    (marks / "node001").write_text(f"{kind} 0 1\n")


@pytest.mark.attack("the umask of a job opens the marks of quiet ranks to everybody")
def test_marks_are_closed(tmp_path: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    activity = Activity(os.getpid(), str(tmp_path / "quiet" / "node001"), variables)
    (tmp_path / "quiet").mkdir(0o755)
    before = os.umask(0)
    try:
        activity.mark("idle")
    finally:
        os.umask(before)
    assert read_marks(tmp_path / "quiet") == ([], True)
    assert (tmp_path / "quiet" / "node001").stat().st_mode & 0o022 == 0


def test_marks_in_a_directory_of_a_group_say_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "quiet"
    marks.mkdir()
    mark(marks, "stopped")
    marks.chmod(0o755)
    assert read_marks(marks) == ([0], True)
    marks.chmod(0o775)
    assert read_marks(marks) == ([], False)


class TestMarksOfOthers:
    pytestmark = pytest.mark.root

    @pytest.mark.attack("a stranger marks the ranks of a train as stopped")
    def test_mark_of_a_stranger_says_nothing(self, tmp_path: Path) -> None:
        open_to_all(tmp_path)
        marks = tmp_path / "quiet"
        marks.mkdir()
        marks.chmod(0o777)
        os.chown(tmp_path, OWNER.uid, -1)
        STRANGER.run(lambda: mark(marks, "stopped"))
        assert (marks / "node001").exists()
        assert read_marks(marks) == ([], False)

    @pytest.mark.attack("the marks are a link to a directory of the owner")
    def test_marks_are_never_read_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        mark(tmp_path / "other", "stopped")
        (tmp_path / "quiet").symlink_to(tmp_path / "other")
        assert read_marks(tmp_path / "quiet") == ([], False)

    @pytest.mark.attack("a stranger takes the name of the directory for checkpoints that are set aside")
    @pytest.mark.parametrize("by_link", [False, True])
    def test_aside_of_a_stranger_is_refused(self, tmp_path: Path, *, by_link: bool) -> None:
        place = make_shared_directory(tmp_path)
        assert STRANGER.run(lambda: take_name(place, tmp_path, by_link=by_link)) == "None"
        answer = OWNER.run(lambda: set_aside([place / "step-2"], place / "step-1", ".rolled-back-0001", None))
        assert answer.startswith("RunDirError")
        assert (place / "step-2").is_dir()

    @pytest.mark.attack("a stranger has the undo of a rollback bring back files of the stranger")
    @pytest.mark.parametrize("by_link", [False, True])
    def test_nothing_is_brought_back_from_a_stranger(self, tmp_path: Path, *, by_link: bool) -> None:
        place = make_shared_directory(tmp_path)
        assert STRANGER.run(lambda: take_name(place, tmp_path, by_link=by_link)) == "None"
        STRANGER.run(lambda: (place / ".rolled-back-0001" / "step-3.ckpt").write_text("pickle"))
        answer = OWNER.run(lambda: bring_back(place, ".rolled-back-0001", ".undone-0001"))
        assert answer.startswith("RunDirError")
        assert not (place / "step-3.ckpt").exists()


def open_to_all(place: Path) -> None:
    for path in (place, *place.parents):
        if path.stat().st_uid == os.geteuid() and path not in (Path("/"), Path("/tmp")):
            path.chmod(0o755)


def make_shared_directory(place: Path) -> Path:
    """Return a sticky directory with two checkpoints of OWNER, in which everybody can make entries."""
    open_to_all(place)
    place.chmod(0o1777)
    shared = place / "checkpoints"
    shared.mkdir()
    shared.chmod(0o1777)
    OWNER.run(lambda: [(shared / name).mkdir() for name in ("step-1", "step-2")])
    return shared


def take_name(shared: Path, place: Path, *, by_link: bool) -> None:
    aside = shared / ".rolled-back-0001"
    made = place / "mine" if by_link else aside
    made.mkdir()
    made.chmod(0o777)
    if by_link:
        aside.symlink_to(made)


@pytest.mark.attack("the directory for checkpoints that are set aside is open to others")
def test_open_aside_is_refused(tmp_path: Path) -> None:
    for name in ("step-1", "step-2", ".rolled-back-0001"):
        (tmp_path / name).mkdir()
    (tmp_path / ".rolled-back-0001").chmod(0o777)
    with pytest.raises(RunDirError, match="another user"):
        set_aside([tmp_path / "step-2"], tmp_path / "step-1", ".rolled-back-0001", None)
