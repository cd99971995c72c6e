"""Every command has a one-line help, paragraphs, an example, and is named in the reference."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opsctl.cli import COMMANDS, GROUPS, INTERNAL, cli

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
MAX_SUMMARY_CHARS = 60
NOT_IMPERATIVE = re.compile(
    "A|All|An|Any|Are|As|At|By|Can|Do|Does|Each|Every|Everything|For|From|How|If|In|Is|It|Its|No|Of|On|One|Say|Tell|"
    "The|These|This|To|What|When|Where|Which|Who|Whose|Why|With|Your"
)
"""First words of phrases and questions."""
META = {"help", "version"}
"""Commands that the reference need not explain."""


def commands(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*prefix, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))


ALL = list(commands(cli))
every_command = pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])


def help_of(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words), prog_name="opsctl")
    assert result.exit_code == 0, result.output
    return result.output


def summary_of(command: click.Command) -> str:
    """Return the first paragraph of a command's help, as `--help` of the group above prints it."""
    return (command.help or "").partition("\n\n")[0]


@every_command
def test_command_has_help(path: tuple[str, ...], command: click.Command) -> None:
    assert summary_of(command) in help_of(*path, "--help")


@every_command
def test_summary_is_one_imperative_line(path: tuple[str, ...], command: click.Command) -> None:
    summary = summary_of(command)
    assert len(summary) <= MAX_SUMMARY_CHARS
    assert re.fullmatch(r"[A-Z][a-z]+,? [^\n]+[^.]\.", summary)
    assert not NOT_IMPERATIVE.fullmatch(summary.split()[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_table_repeats_the_summary(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert COMMANDS[name].summary == summary_of(command)


@every_command
def test_group_help_cuts_no_summary(path: tuple[str, ...], command: click.Command) -> None:
    shown = help_of(*path[:-1], "--help")
    is_hidden = len(path) == 1 and COMMANDS[path[0]].group == INTERNAL
    assert (summary_of(command) in shown) is not is_hidden


@every_command
def test_option_has_one_line_of_help(path: tuple[str, ...], command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
            assert len(option.help) <= MAX_SUMMARY_CHARS, option.help
            assert re.match(r"[A-Z]", option.help), option.help
            assert option.help.endswith("."), option.help


def test_help_lists_the_groups_in_order() -> None:
    titles = re.findall(r"^([A-Z][a-z ]+):$", help_of("--help"), re.MULTILINE)
    assert titles == ["Options", *GROUPS]


@pytest.mark.parametrize("path", [(), ("launch",), ("kill-switch", "arm")], ids=" ".join)
def test_help_command_prints_the_same_as_help_option(path: tuple[str, ...]) -> None:
    assert help_of("help", *path) == help_of(*path, "--help")


def test_help_of_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["help", "lunch"], prog_name="opsctl")
    assert str(result.exception) == "no such command: lunch; did you mean 'launch'?"


def test_version_is_printed() -> None:
    assert re.fullmatch(r"opsctl \d+\.\S+\n", help_of("version"))


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - META))
def test_reference_names_the_command(name: str) -> None:
    assert f"opsctl {name}" in REFERENCE


@every_command
def test_command_shows_an_example(path: tuple[str, ...], command: click.Command) -> None:
    name = "init" if path == ("config", "init") else " ".join(path)  # the same command
    assert f"opsctl {name}" in (command.help or "")
