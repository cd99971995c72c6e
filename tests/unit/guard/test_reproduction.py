"""The record of code, environment and packages of an attempt, without secrets."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from opsctl.base.ports import Completed, Runner
from opsctl.guard.reproduction import HIDDEN, dump_code, dump_environment, mask, mask_logins
from opsctl.host.system import SystemRunner
from opsctl.state.run_dir import Attempt, RunDir
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain


@pytest.mark.parametrize(*read_cases(__file__, "secret_variable_is_hidden"))
def test_secret_variable_is_hidden(name: str) -> None:
    assert mask({name: "hunter2"}) == {name: HIDDEN}


def test_other_variables_are_unchanged() -> None:
    env = {"PATH": "/bin:/usr/bin", "LINES": "a\nb", "MAIL": "me@example.org", "ADDRESS": "https://example.org/a@b"}
    assert mask(env) == env


@pytest.mark.parametrize(*read_cases(__file__, "logins_in_addresses_are_hidden"))
def test_logins_in_addresses_are_hidden(text: str, masked: str) -> None:
    masked = masked.replace("HIDDEN", HIDDEN)
    assert mask_logins(text) == masked
    assert mask({"INDEX": text}) == {"INDEX": masked}


def dump(run: RunDir, attempt: Attempt, runner: Runner, env: Mapping[str, str], *, is_over: Callable[[], bool]) -> None:
    dump_environment(run, attempt, env)
    dump_code(run, attempt, runner, env, is_over=is_over)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "checkout"
    path.mkdir()
    git = ["git", "-C", str(path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (path / "train.py").write_text("lr = 1\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    (path / "train.py").write_text("lr = 2\n")
    return path


def test_uncommitted_changes_are_stored(train: QueuedTrain, checkout: Path) -> None:
    attempt = train.start_attempt()
    dump(train.run, attempt, SystemRunner(), {"SLURM_SUBMIT_DIR": str(checkout)}, is_over=lambda: False)
    assert "+lr = 2" in (attempt.repro / "uncommitted.diff").read_text()
    assert "\n M train.py\n" in (attempt.repro / "git.txt").read_text()


def test_git_index_is_not_written(train: QueuedTrain, checkout: Path) -> None:
    (checkout / "train.py").write_text("lr = 1\n")  # the committed text, with a newer time than in the index
    os.utime(checkout / "train.py", (1, 1))
    index = checkout / ".git" / "index"
    before = index.stat()
    dump(train.run, train.start_attempt(), SystemRunner(), {"SLURM_SUBMIT_DIR": str(checkout)}, is_over=lambda: False)
    after = index.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_no_checkout_gives_no_diff(train: QueuedTrain, tmp_path: Path) -> None:
    attempt = train.start_attempt()
    dump(train.run, attempt, SystemRunner(), {"SLURM_SUBMIT_DIR": str(tmp_path)}, is_over=lambda: False)
    assert not (attempt.repro / "uncommitted.diff").exists()


class WithoutPip:
    """A runner whose pip fails."""

    def run(
        self, argv: list[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        if "pip" in argv:
            return Completed(argv=tuple(argv), code=1, out="half a l", err="No module named pip")
        return SystemRunner().run(argv, timeout=timeout, stdin=stdin, env=env)


def test_packages_are_listed_without_pip(train: QueuedTrain) -> None:
    train.run.config.write_text(f'command = ["env", "{sys.executable}", "train.py"]\n')
    attempt = train.start_attempt()
    dump(train.run, attempt, WithoutPip(), {}, is_over=lambda: False)  # type: ignore[arg-type]  # a list is a sequence
    assert "\npsutil==" in (attempt.repro / "packages.txt").read_text()


def test_interrupted_dump_leaves_whole_files(train: QueuedTrain) -> None:
    attempt = train.start_attempt()
    dump(train.run, attempt, SystemRunner(), {}, is_over=lambda: True)
    assert sorted(path.name for path in attempt.repro.iterdir()) == ["env.json", "modules.txt"]
