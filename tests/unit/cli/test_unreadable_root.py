"""A root that cannot be listed has unknown trains, not none."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.base.errors import RunDirError
from opsctl.cli import cli
from opsctl.cli.top.trains_feed import TrainsFeed
from opsctl.dash.collect_site import collect_site


class EnoughPages(Exception):
    """Ends `status --watch`."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trains").touch()
    site = tmp_path / "site.toml"
    site.write_text(f"root = '{tmp_path}/trains'\n")
    monkeypatch.setenv("OPSCTL_SITE", str(site))
    return site


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["digest"], ["publish"]])
def test_command_refuses_an_unreadable_root(site: Path, words: list[str]) -> None:
    with pytest.raises(RunDirError, match="trains: Not a directory"):
        cli.main(words, standalone_mode=False)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watched_status_goes_on(
    site: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, pauses = site.parent / "trains", list[float]()

    def sleep(_: object, seconds: float) -> None:
        root.unlink(missing_ok=True)  # the next look finds a root without trains
        pauses.append(seconds)
        if len(pauses) > 1:
            raise EnoughPages

    monkeypatch.setattr("opsctl.host.system.SystemClock.sleep", sleep)
    with pytest.raises(EnoughPages):
        cli.main(["status", "--watch", "--every", "7s", *options], standalone_mode=False)
    printed = capsys.readouterr()
    assert pauses == [7.0, 7.0]
    assert "trains: Not a directory" in printed.err
    assert printed.out.startswith("[]" if options else "no trains below")


def test_page_keeps_the_trains_of_before(site: Path) -> None:
    with pytest.raises(RunDirError, match="trains: Not a directory"):  # the refresher then keeps the view
        collect_site(build(site))


def test_top_names_the_unreadable_root(site: Path) -> None:
    assert "trains: Not a directory" in TrainsFeed(build(site)).read().problem


def test_root_of_the_first_launch_need_not_exist(site: Path) -> None:
    (site.parent / "trains").unlink()
    assert TrainsFeed(build(site)).read().problem == ""
