"""What the shell is given while somebody types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two trains whose names begin alike, and what is none."""
    for name in ("gpt", "gpt-2", ".site", "other"):
        (tmp_path / "trains" / name).mkdir(parents=True)
        (tmp_path / "trains" / name / "train.toml").touch()
    (tmp_path / "trains" / "gpt-3").mkdir()
    path = tmp_path / "site.toml"
    path.write_text(f'root = "{tmp_path}/trains"\n')
    return path


def offered(words: str, site: Path) -> list[str]:
    """What bash is offered for the last of these words."""
    env = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "OPSCTL_SITE": str(site),
           "_OPSCTL_COMPLETE": "bash_complete"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from opsctl.cli import cli; cli(prog_name='opsctl')"],
        env=env, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain,")]


@pytest.mark.parametrize("words", ["status gp", "cancel gp", "checkpoint list gp", "watch --train gp", "metrics gp"])
def test_trains_that_begin_so_are_offered(site, words):
    assert offered(f"opsctl {words}", site) == ["gpt", "gpt-2"]


def test_the_site_that_is_typed_goes_before_the_one_that_is_found(site, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(f'root = "{tmp_path}/none"\n')
    assert offered("opsctl status ", site) == ["gpt", "gpt-2", "other"]
    assert offered(f"opsctl --site {other} status ", site) == []


def test_where_the_settings_do_not_hold_nothing_is_offered_and_nothing_said(site):
    site.write_text("rot = 1\n")
    assert offered("opsctl status ", site) == []
