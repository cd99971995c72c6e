"""What the README shows can be typed: every verb, every option, every file that it names."""

import re
import shlex
from pathlib import Path

import click
import pytest

from opsctl.cli import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
TYPED = sorted(set(re.findall(r"^(?:\$ )?(opsctl [a-z].*?)(?:  .*)?$", BLOCKS, re.MULTILINE)))


def test_the_readme_shows_commands() -> None:
    assert len(TYPED) >= 10


@pytest.mark.parametrize("line", TYPED)
def test_a_command_of_the_readme_is_understood(line: str) -> None:
    words = shlex.split(line)[1:]
    context = click.Context(cli, info_name="opsctl")
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"{line}: no {words[0]!r}"
        command, words = found, words[1:]
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_a_link_of_the_readme_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
