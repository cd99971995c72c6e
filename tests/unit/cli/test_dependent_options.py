"""Options that would have no effect are refused; a command line that lacks several parts is refused once."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError
from opsctl.cli import cli
from opsctl.cli.dependent_option import DependentOption
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_cases, read_table

WITHOUT = read_table(__file__, "without")
TOGETHER = read_table(__file__, "together")


def refuse(text: str) -> str:
    """Return the usage error of a command line."""
    with pytest.raises(click.UsageError) as refused:
        cli.main(text.split(), prog_name="opsctl", standalone_mode=False)
    return refused.value.message


@pytest.mark.parametrize(("text", "message"), WITHOUT)
def test_option_without_its_partner_is_refused(text: str, message: str) -> None:
    assert refuse(text) == message


@pytest.mark.parametrize(("text", "names"), TOGETHER)
def test_options_that_exclude_each_other_are_refused(text: str, names: str) -> None:
    assert refuse(text) == f"{names} exclude each other."


@pytest.mark.parametrize("text", ["drain-bad-nodes --max some", "nodes reboot node1 --max 3%%"])
def test_limit_of_nodes_is_read_before_nodes_are(text: str) -> None:
    with pytest.raises(InputError, match="is neither a number nor a percentage"):
        cli.main(text.split(), prog_name="opsctl", standalone_mode=False)


@pytest.mark.parametrize("words", [["exec", "-w", "", "--", "true"], ["nodes", "reboot", " "]])
def test_empty_node_list_selects_no_node(words: list[str]) -> None:
    with pytest.raises(InputError, match="no node is named"):
        cli.main(words, prog_name="opsctl", standalone_mode=False)


def test_default_of_an_option_is_no_use_of_it() -> None:
    with pytest.raises(click.UsageError, match="Name a TRAIN"):
        cli.main(["logs", "--all"], prog_name="opsctl", standalone_mode=False)


def test_half_typed_line_is_not_refused() -> None:
    context = cli.make_context("opsctl", ["status", "--every", "5s"], resilient_parsing=True)
    command = cli.get_command(context, "status")
    assert command is not None
    command.make_context("status", ["--every", "5s"], parent=context, resilient_parsing=True)


def list_commands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from list_commands(found)


def spell(params: Sequence[click.Parameter]) -> set[str]:
    """Return the words of parameters in the help."""
    words = {param.human_readable_name.strip("[].") for param in params if isinstance(param, click.Argument)}
    for param in params:
        words.update(param.opts)
    return words


def test_every_partner_is_a_word_of_the_command() -> None:
    missing: dict[tuple[str, str], bool] = defaultdict(lambda: True)
    for command in list_commands(cli):
        for param in command.params:
            if isinstance(param, DependentOption):
                for word in (*param.only_with, *param.not_with):
                    missing[param.opts[-1], word] &= word not in spell(command.params)
    assert [pair for pair, is_missing in missing.items() if is_missing] == []


def test_queued_only_of_one_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "site.toml"))
    run = RunDir(tmp_path / "trains/tr11")
    run.create()
    run.config.write_text("")
    with pytest.raises(InputError, match="tr11_3: --queued-only cancels all queued tasks of a train, not one task"):
        cli.main(["cancel", "tr11_3", "--queued-only"], prog_name="opsctl", standalone_mode=False)


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
