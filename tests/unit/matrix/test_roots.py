"""A root ends with its run, and nothing that is mounted in it is removed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix.roots import expand, remove, requirements, run_bounded

REMOVE_WITH_A_MOUNT = """
import subprocess, sys
from pathlib import Path
from tests.matrix.mirror import CannotBuild
from tests.matrix.roots import remove
directory = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory / "root"], check=True)
(directory / "root" / "file").touch()
try:
    remove(directory)
except CannotBuild as error:
    print(error)
    sys.exit(0 if (directory / "root" / "file").exists() else 3)
sys.exit(4)
"""


def can_mount() -> bool:
    argv = ["unshare", "--mount", "true"]
    return os.geteuid() == 0 and subprocess.run(argv, capture_output=True, check=False, timeout=250).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs root and a mount namespace")
def test_mounted_directory_is_left_in_place(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    argv = ["unshare", "--mount", sys.executable, "-c", REMOVE_WITH_A_MOUNT, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'root'} is mounted in it" in done.stdout


def test_root_without_mounts_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "matrix"
    (directory / "root" / "etc").mkdir(parents=True)
    remove(directory)
    assert not directory.exists()


def test_command_that_takes_too_long_is_ended() -> None:
    assert run_bounded(["sleep", "3000"], env=dict(os.environ), limit_s=0.2, output=None) == 124


def test_no_root_installs_the_released_opsctl() -> None:
    names = requirements()
    assert [name for name in names if name.startswith("opsctl")] == []
    assert any(name.startswith("paramiko") for name in names)


def test_extra_of_extras_is_expanded() -> None:
    extras = {"a": ["x"], "b": ["y"], "all": ["opsctl-slurm[a,b]"], "dev": ["opsctl-slurm[all]", "z"]}
    assert list(expand(["dev"], extras)) == ["x", "y", "z"]
