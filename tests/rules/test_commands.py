"""Every command has a one-line help, paragraphs and an example."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError
from opsctl.cli import COMMANDS, GROUPS, INTERNAL, cli

MAX_SUMMARY_CHARS = 60
NOT_IMPERATIVE = re.compile(
    "A|All|An|Any|Are|As|At|By|Can|Do|Does|Each|Every|Everything|For|From|How|If|In|Is|It|Its|No|Of|On|One|Say|Tell|"
    "The|These|This|To|What|When|Where|Which|Who|Whose|Why|With|Your"
)
"""First words of phrases and questions."""


def commands(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*prefix, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))


ALL = list(commands(cli))


def help_of(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words), prog_name="opsctl")
    assert result.exit_code == 0, result.output
    return result.output


def summary_of(command: click.Command) -> str:
    """Return the first paragraph of a command's help, as `--help` of the group above prints it."""
    return (command.help or "").partition("\n\n")[0]


def test_commands_have_help() -> None:
    assert [path for path, command in ALL if summary_of(command) not in help_of(*path, "--help")] == []


def is_imperative_line(summary: str) -> bool:
    is_line = len(summary) <= MAX_SUMMARY_CHARS and re.fullmatch(r"[A-Z][a-z]+,? [^\n]+[^.]\.", summary)
    return bool(is_line) and not NOT_IMPERATIVE.fullmatch(summary.split(maxsplit=1)[0])


def test_summaries_are_imperative_lines() -> None:
    assert [path for path, command in ALL if not is_imperative_line(summary_of(command))] == []


def test_table_repeats_the_summaries() -> None:
    top = {path[0]: summary_of(command) for path, command in ALL if len(path) == 1}
    assert {name: row.summary for name, row in COMMANDS.items()} == top


def test_group_help_cuts_no_summary() -> None:
    shown = {group: help_of(*group, "--help") for group in {path[:-1] for path, _ in ALL}}
    for path, command in ALL:
        is_hidden = len(path) == 1 and COMMANDS[path[0]].group == INTERNAL
        assert (summary_of(command) in shown[path[:-1]]) is not is_hidden, path


def test_options_have_one_line_of_help() -> None:
    wrong = []
    for path, command in ALL:
        options = [option for option in command.params if isinstance(option, click.Option)]
        wrong += [(path, option.opts) for option in options if not is_help_line(option.help or "")]
    assert wrong == []


def is_help_line(text: str) -> bool:
    return 0 < len(text) <= MAX_SUMMARY_CHARS and bool(re.match(r"[A-Z]", text)) and text.endswith(".")


def test_help_lists_the_groups_in_order() -> None:
    titles = re.findall(r"^([A-Z][a-z ]+):$", help_of("--help"), re.MULTILINE)
    assert titles == ["Options", *GROUPS]


@pytest.mark.parametrize("path", [(), ("launch",), ("kill-switch", "arm")], ids=" ".join)
def test_help_command_prints_the_same_as_help_option(path: tuple[str, ...]) -> None:
    assert help_of("help", *path) == help_of(*path, "--help")


def test_help_of_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["help", "lunch"], prog_name="opsctl")
    assert isinstance(result.exception, InputError)
    assert (str(result.exception), result.exception.hint) == ("no such command: lunch", "Did you mean 'launch'?")


def test_version_is_printed() -> None:
    assert re.fullmatch(r"opsctl \d+\.\S+\n", help_of("version"))


def test_commands_show_an_example() -> None:
    missing = []
    for path, command in ALL:
        name = "init" if path == ("config", "init") else " ".join(path)  # the same command
        if f"opsctl {name}" not in (command.help or ""):
            missing.append(name)
    assert missing == []
