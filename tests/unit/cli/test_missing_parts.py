"""A command line that lacks several parts is refused once, with all of them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError
from opsctl.cli import cli
from tests.support.cases import read_cases


@pytest.mark.parametrize(*read_cases(__file__, "every_missing_part_is_named"))
def test_every_missing_part_is_named(words: list[str], missing: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, result.output.splitlines()[-1]) == (2, f"Error: {missing}")


def refuse_plan(*words: str) -> list[str]:
    result = CliRunner().invoke(cli, ["plan", *words])
    assert isinstance(result.exception, InputError)
    return result.exception.message.splitlines()


def test_plan_names_all_problems_at_once() -> None:
    first, *problems = refuse_plan("llama-3-7b", "--batch", "-1", "--price", "2")
    assert first == "plan: 5 problems"
    assert [problem.split()[0] for problem in problems] == ["llama-3-7b:", "--gpus", "--gpu", "batch", "--price"]
    assert "did you mean llama-3-70b" in problems[0]
    assert "H100" in problems[2]


def test_plan_without_a_model_names_what_is_missing() -> None:
    assert [line.partition(",")[0] for line in refuse_plan("overview", "--layers", "4", "--gpu", "H100")] == [
        "plan: 2 problems",
        "  no model is given: a file",
        "  --gpus is missing: the number of GPUs",
    ]
