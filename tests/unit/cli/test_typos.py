"""What the command line answers to misspelt and misplaced words."""

from collections.abc import Sequence

import click
import pytest

from opsctl.base.errors import InputError
from opsctl.cli import cli


def refuse(words: Sequence[str]) -> str:
    """Return the text with which the command line refuses the words."""
    with pytest.raises((click.UsageError, InputError)) as refused:
        cli.main(list(words), prog_name="opsctl", standalone_mode=False)
    error = refused.value
    return error.format_message() if isinstance(error, click.UsageError) else str(error)


@pytest.mark.parametrize("option", ["--host", "--site", "-v"])
def test_option_behind_the_command_gets_its_place(option: str) -> None:
    assert f"opsctl {option} ... status" in refuse(["status", option, "x"])


def test_unknown_option_gets_no_place() -> None:
    assert "before the command" not in refuse(["status", "--hots", "x"])


@pytest.mark.parametrize(
    "words", [["plan", "topolgy"], ["plan", "topolgy", "--gpus", "8"], ["help", "plan", "topolgy"]]
)
def test_similar_command_is_named(words: list[str]) -> None:
    assert "id you mean 'topology'?" in refuse(words)


def test_similar_command_of_the_first_word_is_named() -> None:
    assert "did you mean 'status'?" in refuse(["help", "statsu"])


def test_report_without_a_train_asks_for_one() -> None:
    assert refuse(["report"]) == "Name a TRAIN, or a log with --log."
    assert refuse(["report", "t", "--log", "x"]).endswith("not both.")
