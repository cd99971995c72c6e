"""The archives of apt and pip are read from their own configuration, whatever the way they are written."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.matrix.mirror import CannotBuild, Source, find_archive, read_sources, render_pip_conf, render_sources_list
from tests.support.cases import read_cases

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
