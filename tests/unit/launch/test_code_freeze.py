"""Copies of the trainer's code: which files, their hash, links, limits and refusals. With the real git."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.host.system import SystemRunner
from opsctl.launch.code_freeze import FrozenCode, plan_freeze, read_record, store
from opsctl.settings.setup import ShellSetup
from opsctl.state.run_dir import RunDir

Plan = Callable[..., FrozenCode]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of code, and no settings of git from the user."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    code = tmp_path / "code"
    (code / "pkg").mkdir(parents=True)
    (code / "train.py").write_text("print(1)")
    (code / "pkg" / "run.sh").write_text("#!/bin/sh")
    (code / "pkg" / "run.sh").chmod(0o755)
    return code


@pytest.fixture
def plan(tmp_path: Path, code: Path) -> Plan:
    def plan(how: str = "copy", directory: Path = code, **more: object) -> FrozenCode:
        setup = ShellSetup(freeze=how, directory=str(directory), **more)  # type: ignore[arg-type]  # fields of the table
        frozen = plan_freeze(setup, SystemRunner(), root=tmp_path / "trains")
        assert frozen is not None
        return frozen

    return plan


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "trains" / "t")
    run.create()
    return run


def git(code: Path, *words: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(code), *identity, *words], check=True, capture_output=True, timeout=250)


def commit(code: Path) -> None:
    git(code, "init", "--quiet")
    git(code, "add", "--all")
    git(code, "commit", "--quiet", "--message", "first")


def test_train_without_freeze_has_no_copy(tmp_path: Path) -> None:
    assert plan_freeze(ShellSetup(), SystemRunner(), root=tmp_path) is None


def test_copy_holds_contents_and_modes(plan: Plan, run: RunDir) -> None:
    frozen = plan()
    store(frozen, run)
    copy = frozen.directory(run)
    assert (copy / "train.py").read_text() == "print(1)"
    assert [os.access(copy / name, os.X_OK) for name in ("pkg/run.sh", "train.py")] == [True, False]
    assert (run.path / "code").stat().st_mode & 0o777 == 0o700
    assert len(list((run.path / "code").iterdir())) == 1


def test_later_change_reaches_no_copy(plan: Plan, run: RunDir, code: Path) -> None:
    before = plan()
    store(before, run)
    (code / "train.py").write_text("print(2)")
    after = plan()
    store(after, run)
    assert (before.directory(run) / "train.py").read_text() == "print(1)"
    assert (after.directory(run) / "train.py").read_text() == "print(2)"


@pytest.mark.parametrize("change", ["content", "name", "mode", "link"])
def test_every_change_has_another_hash(plan: Plan, code: Path, change: str) -> None:
    before = plan().hash
    assert plan().hash == before
    if change == "content":
        (code / "train.py").write_text("print(2)")
    elif change == "name":
        (code / "train.py").rename(code / "main.py")
    elif change == "mode":
        (code / "train.py").chmod(0o755)
    else:
        (code / "link").symlink_to("train.py")
    assert plan().hash != before


def test_change_during_the_launch_is_refused(plan: Plan, run: RunDir, code: Path) -> None:
    frozen = plan()
    (code / "train.py").write_text("print(2)")
    with pytest.raises(InputError, match="changed meanwhile"):
        store(frozen, run)
    assert list((run.path / "code").iterdir()) == []


def test_copy_leaves_out_caches_environments_and_trains(plan: Plan, code: Path, tmp_path: Path) -> None:
    for name in (".git/config", "pkg/__pycache__/a.pyc", "env/pyvenv.cfg", "env/lib/x.py", "../trains/t/train.toml"):
        path = code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert plan().files == ("pkg/run.sh", "train.py")
    assert not [name for name in plan(directory=tmp_path).files if name.startswith("trains")]


def test_pattern_excludes_files_and_directories(plan: Plan, code: Path) -> None:
    (code / "data").mkdir()
    (code / "data" / "big").write_text("x")
    assert plan(freeze_exclude=("data/", "*.sh")).files == ("train.py",)


def test_git_copies_what_is_not_ignored(plan: Plan, run: RunDir, code: Path) -> None:
    (code / ".gitignore").write_text("*.ckpt\n")
    (code / "gone.py").write_text("x")
    commit(code)
    assert len(plan("git").commit) == 40
    (code / "gone.py").unlink()
    (code / "model.ckpt").write_text("large")
    (code / "new ünd\n odd.py").write_text("new")
    (code / "train.py").write_text("print(2)")
    frozen = plan("git")
    assert frozen.files == (".gitignore", "new ünd\n odd.py", "pkg/run.sh", "train.py")
    assert frozen.commit.endswith("+3")
    store(frozen, run)
    assert (frozen.directory(run) / "train.py").read_text() == "print(2)"


def test_git_copies_the_whole_checkout_and_starts_below(plan: Plan, run: RunDir, code: Path) -> None:
    commit(code)
    frozen = plan("git", directory=code / "pkg")
    store(frozen, run)
    assert sorted(os.listdir(frozen.directory(run))) == ["run.sh"]
    assert (frozen.directory(run).parent / "train.py").exists()


def test_git_copies_submodules(plan: Plan, code: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "lib.py").write_text("x")
    commit(inner)
    commit(code)
    git(code, "submodule", "--quiet", "add", str(inner), "vendored")
    assert "vendored/lib.py" in plan("git").files


def test_git_changes_nothing_in_the_checkout(plan: Plan, code: Path) -> None:
    commit(code)
    (code / "new.py").write_text("x")
    before = {path: path.stat().st_mtime_ns for path in (code / ".git").rglob("*")}
    plan("git")
    assert {path: path.stat().st_mtime_ns for path in (code / ".git").rglob("*")} == before


def test_directory_without_git_is_refused(plan: Plan) -> None:
    with pytest.raises(InputError, match="not a git repository") as caught:
        plan("git")
    assert caught.value.hint == 'freeze = "copy" needs no git repository'


def test_too_large_copy_is_refused_with_the_largest_entries(plan: Plan, code: Path) -> None:
    (code / "data").mkdir()
    (code / "data" / "big").write_bytes(b"x" * 5000)
    with pytest.raises(InputError, match="the largest: data ") as caught:
        plan(freeze_max_size=4000)
    assert "freeze_exclude" in (caught.value.hint or "")


def test_links_are_not_followed(plan: Plan, run: RunDir, code: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    links = {"abs": code / "train.py", "rel": "pkg/run.sh", "out": outside, "up": "../outside/secret", "none": "/gone"}
    for name, target in links.items():
        (code / name).symlink_to(target)
    frozen = plan()
    store(frozen, run)
    copy = frozen.directory(run)
    targets = {name: os.readlink(copy / name) for name in links}
    expected = {"abs": "train.py", "rel": "pkg/run.sh", "out": str(outside)}
    assert targets == {**expected, "up": str(outside / "secret"), "none": "/gone"}


def test_link_to_an_excluded_directory_leads_to_the_original(plan: Plan, run: RunDir, code: Path) -> None:
    (code / "data").mkdir()
    (code / "data" / "big").write_text("x")
    (code / "link").symlink_to("data")
    frozen = plan(freeze_exclude=("data",))
    store(frozen, run)
    assert (frozen.directory(run) / "link" / "big").read_text() == "x"


def test_pipes_and_sockets_are_left_out(plan: Plan, code: Path) -> None:
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(code / "sock"))
        assert plan().files == ("pkg/run.sh", "train.py")


def test_missing_directory_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory here"):
        plan(directory=tmp_path / "gone")


def test_damaged_record_counts_as_none(run: RunDir) -> None:
    assert read_record(run) == {}
    (run.path / "code.json").write_text("[1")
    assert read_record(run) == {}
