"""Roots of other distributions: where their archives are configured, and that they end with their run."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.matrix.mirror import CannotBuild, Source, find_archive, read_sources, render_pip_conf, render_sources_list
from tests.matrix.roots import expand, remove, requirements, run_bounded
from tests.support.cases import read_cases

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


BASE = Source(uri="http://deb.example.org/debian/", release="bookworm", component="main", signed_by="")
UPDATES = Source(uri=BASE.uri, release="bookworm-updates", component="main", signed_by="")
SECURITY = Source(uri="http://deb.example.org/security/", release="bookworm-security", component="main", signed_by="")

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt-get")


def apt_options(directory: Path, name: str, text: str) -> list[str]:
    """Return the options with which apt-get reads only the source file `name` holding `text`."""
    parts, lists = directory / "sources.list.d", directory / "lists"
    parts.mkdir()
    (lists / "partial").mkdir(parents=True)
    (parts / name).write_text(text)
    for architecture in ("amd64", "arm64"):  # apt names only what it has downloaded
        (lists / f"deb.example.org_debian_dists_bookworm_main_binary-{architecture}_Packages").touch()
    settings = {"Etc::sourcelist": "/dev/null", "Etc::sourceparts": parts, "State::lists": lists, "Cache": directory}
    return [word for key, value in settings.items() for word in ("-o", f"Dir::{key}={value}")]


@needs_apt
@pytest.mark.parametrize(*read_cases(__file__, "both_source_formats_are_read"))
def test_both_source_formats_are_read(tmp_path: Path, name: str, text: str) -> None:
    assert read_sources(apt_options(tmp_path, name, text)) == [BASE]


def test_archive_is_that_of_the_base_suite() -> None:
    assert find_archive([SECURITY, UPDATES, BASE], "bookworm") == BASE.uri


def test_missing_archive_is_refused() -> None:
    with pytest.raises(CannotBuild, match="no archive for trixie"):
        find_archive([BASE], "trixie")


def test_stable_suite_gets_updates_and_security() -> None:
    lines = render_sources_list(
        [BASE, UPDATES, SECURITY], machine="bookworm", suite="trixie", rolling=["sid"]
    ).splitlines()
    assert [line.split()[2] for line in lines] == ["trixie", "trixie-updates", "trixie-security"]


def test_rolling_suite_gets_the_base_archive_only() -> None:
    text = render_sources_list([BASE, UPDATES, SECURITY], machine="bookworm", suite="sid", rolling=["sid"])
    assert text == "deb http://deb.example.org/debian/ sid main\n"


@pytest.mark.skipif(not find_spec("pip"), reason="needs pip in this environment")
def test_pip_settings_keep_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "index" / "wheels"
    wheels.mkdir(parents=True)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nfind-links = {wheels}\nrequire-virtualenv = true\n")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    text, paths = render_pip_conf(sys.executable)
    assert f"find-links = {wheels}" in text
    assert "require-virtualenv" not in text
    assert wheels in paths
