"""What is recorded of code and packages when an attempt ends before its first step."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from opsctl.base.ports import Completed
from opsctl.guard.during_body import DuringBody
from opsctl.guard.reproduction import list_packages, read_commit
from tests.support.finalized_trains import QueuedTrain


class NoProgram:
    def run(self, argv: object, **_: object) -> Completed:
        raise AssertionError(f"{argv} was started")


def git(place: Path, *words: str) -> str:
    options = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    argv = ("git", "-C", str(place), *options, *words)
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "checkout"
    (path / "inside").mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


def make_beside(train: QueuedTrain, checkout: Path) -> DuringBody:
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # /usr/bin/python3 may have no package at all
    attempt, env = train.start_attempt(), {"SLURM_SUBMIT_DIR": str(checkout / "inside"), "PATH": programs}
    config = train.run.config.read_text()
    train.run.config.write_text(config.replace("[slurm]", f"python = '{sys.executable}'\n[slurm]", 1))
    return DuringBody(run=train.run, attempt=attempt, runner=NoProgram(), env=env, clock=train.clock)


def test_end_without_a_step_is_recorded_by_files_alone(train: QueuedTrain, checkout: Path) -> None:
    beside = make_beside(train, checkout)
    beside.finish()
    assert (beside.attempt.repro / "git.txt").read_text().startswith(git(checkout, "rev-parse", "HEAD") + "\n")
    packages = (beside.attempt.repro / "packages.txt").read_text().splitlines()
    assert packages
    assert (beside.attempt.repro / "packages.txt").stat().st_mode & 0o777 == 0o600


def test_full_record_is_left_alone(train: QueuedTrain, checkout: Path) -> None:
    beside = make_beside(train, checkout)
    beside.attempt.repro.mkdir(parents=True)
    for name in ("git.txt", "packages.txt"):
        (beside.attempt.repro / name).write_text("full\n")
    beside.finish()
    assert {path.read_text() for path in beside.attempt.repro.iterdir()} == {"full\n"}


def test_packages_are_those_of_the_metadata() -> None:
    found = list_packages(sys.executable, "")
    assert f"pydantic=={metadata.version('pydantic')}" in found
    assert list_packages("/nowhere/python", "") == []


@pytest.mark.parametrize("kind", ["branch", "packed", "detached", "worktree"])
def test_commit_of_every_kind_of_checkout(checkout: Path, kind: str) -> None:
    place = checkout
    if kind == "packed":
        git(checkout, "pack-refs", "--all")
    elif kind == "detached":
        git(checkout, "checkout", "-q", "--detach")
    elif kind == "worktree":
        place = checkout.parent / "tree"
        git(checkout, "worktree", "add", "-q", str(place))
    assert read_commit(place) == git(place, "rev-parse", "HEAD")


def test_directory_without_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / ".git").write_text("rubbish")
    assert read_commit(tmp_path) == ""
