"""Every command has help with an example."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from opsctl.cli import cli


def commands(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*prefix, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*prefix, name))


ALL = list(commands(cli))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_has_help(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="opsctl")
    assert result.exit_code == 0
    assert command.help, path


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    silent = [param.opts for param in command.params if isinstance(param, click.Option) and not param.help]
    assert silent == []


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_command_shows_an_example(path: tuple[str, ...], command: click.Command) -> None:
    assert f"opsctl {' '.join(path)}" in (command.help or "")
