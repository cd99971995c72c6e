"""A repository that names programs: reading the checkout, for the record of an attempt or a copy, runs none."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from opsctl.guard.reproduction import dump_code
from opsctl.host.system import SystemRunner
from opsctl.launch.code_freeze import plan_freeze
from opsctl.settings.setup import ShellSetup
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_table

CONFIGS = read_table(__file__, "configs")
PLACES = ("local", "included", "submodule", "worktree", "global")
CASES = [
    (config, place) for config in CONFIGS for place in PLACES if place == "local" or config in ("filter", "monitor")
]


def git(directory: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, "-C", directory, *words], check=True, capture_output=True)


def make_repository(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q")
    (path / "train.py").write_text("x\n")
    (path / ".gitattributes").write_text("* filter=odd diff=odd merge=odd\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "a")
    return path


@pytest.mark.attack("a repository runs a program when its checkout is read")
@pytest.mark.parametrize(("config", "place"), CASES)
def test_repository_runs_nothing(tmp_path, config, place, monkeypatch):
    ran, program = tmp_path / "ran", tmp_path / "hooks" / "post-index-change"
    top = checkout = make_repository(tmp_path / "code")
    file = checkout / ".git" / "config"
    if place == "submodule":
        make_repository(tmp_path / "other")
        git(top, "submodule", "add", "-q", str(tmp_path / "other"), "part")
        checkout, file = top / "part", top / ".git" / "modules" / "part" / "config"
    elif place == "worktree":
        top = checkout = tmp_path / "tree"
        git(tmp_path / "code", "worktree", "add", "-q", str(top))
    elif place == "included":
        git(top, "config", "include.path", str(tmp_path / "included"))
        file = tmp_path / "included"
    elif place == "global":
        file = tmp_path / "home" / ".gitconfig"
        file.parent.mkdir()
        monkeypatch.setenv("HOME", str(file.parent))
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(ran))}\ncat\n")
    program.chmod(0o755)
    for key in CONFIGS[config]:
        value = str(program.parent if key == "core.hooksPath" else program)
        git(checkout, "config", "--file", str(file), key, f"!{value}" if "alias" in key else value)
    (checkout / "train.py").write_text("changed\n")
    os.utime(checkout / ".gitattributes")

    run = RunDir(tmp_path / "trains" / "tr11")
    run.create()
    run.config.write_text('command = ["true"]\n')
    attempt = run.attempt("1_0.0")
    attempt.repro.mkdir(parents=True)
    ran.unlink(missing_ok=True)
    dump_code(run, attempt, SystemRunner(), {"SLURM_SUBMIT_DIR": str(top)}, is_over=lambda: False)
    code = plan_freeze(ShellSetup(directory=str(top), freeze="git"), SystemRunner(), root=run.path.parent)
    assert not ran.exists()
    is_inside = place == "submodule"
    assert ("part/train.py" if is_inside else "train.py") in code.files
    if not is_inside:
        assert "+changed" in (attempt.repro / "uncommitted.diff").read_text()
        assert code.commit.endswith("+1")
