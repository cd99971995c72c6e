"""Completions that the shell offers while a user types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Three trains, two with the same prefix, and a directory that is no train."""
    for name in ("gpt", "gpt-2", ".site", "other"):
        (tmp_path / "trains" / name).mkdir(parents=True)
        (tmp_path / "trains" / name / "train.toml").touch()
    (tmp_path / "trains" / "gpt-3").mkdir()
    path = tmp_path / "site.toml"
    path.write_text(f'root = "{tmp_path}/trains"\n')
    return path


def complete(words: str, site: Path) -> list[str]:
    """Return the completions that bash gets for the last of `words`."""
    env = {
        **os.environ,
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "OPSCTL_SITE": str(site),
        "_OPSCTL_COMPLETE": "bash_complete",
    }
    result = subprocess.run(
        [sys.executable, "-c", "from opsctl.cli import cli; cli(prog_name='opsctl')"],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line.startswith("plain,")]


@pytest.mark.parametrize("words", ["status gp", "cancel gp", "checkpoint list gp", "watch --train gp", "metrics gp"])
def test_trains_with_the_prefix_are_offered(site, words):
    assert complete(f"opsctl {words}", site) == ["gpt", "gpt-2"]


def test_site_option_overrides_the_environment(site, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(f'root = "{tmp_path}/none"\n')
    assert complete("opsctl status ", site) == ["gpt", "gpt-2", "other"]
    assert complete(f"opsctl --site {other} status ", site) == []


def test_invalid_site_file_offers_nothing(site):
    site.write_text("rot = 1\n")
    assert complete("opsctl status ", site) == []
