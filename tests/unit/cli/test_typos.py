"""What the command line answers to misspelt and misplaced words."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from opsctl.base.errors import InputError
from opsctl.cli import cli
from tests.support.cases import read_cases


def refuse(words: Sequence[str]) -> str:
    """Return the text with which the command line refuses the words."""
    with pytest.raises((click.UsageError, InputError)) as refused:
        cli.main(list(words), prog_name="opsctl", standalone_mode=False)
    error = refused.value
    return error.format_message() if isinstance(error, click.UsageError) else f"{error}: {error.hint}"


@pytest.mark.parametrize("option", ["--host", "--site", "-v"])
def test_option_behind_the_command_gets_its_place(option: str) -> None:
    assert f"opsctl {option} ... status" in refuse(["status", option, "x"])


def test_unknown_option_gets_no_place() -> None:
    assert "before the command" not in refuse(["status", "--hots", "x"])


@pytest.mark.parametrize(*read_cases(__file__, "unknown_command_names_what_to_type"))
def test_unknown_command_names_what_to_type(text: str, instead: str) -> None:
    assert instead in refuse(text.split())


@pytest.mark.parametrize(*read_cases(__file__, "mistake_is_answered"))
def test_mistake_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, file: str | None, says: str
) -> None:
    """In plain words, without Slurm, settings and trains."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_CONF", "OPSCTL_SITE"):
        monkeypatch.delenv(name, raising=False)
    for name, directory in (("OPSCTL_ROOT", "trains"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(name, str(tmp_path / directory))
    Path("file").write_text(file or "")
    answer = " ".join(refuse(shlex.split(text)).removesuffix(": None").split())
    assert says in answer
    assert not re.search(r"tuple|dict|None\b|instance|Errno|True|False", answer)
