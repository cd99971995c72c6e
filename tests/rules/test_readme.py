"""What README, docs and help show can be typed: every verb, every option, every file that it names."""

import inspect
import itertools
import re
import shlex
from pathlib import Path

import click
import pytest

from opsctl.cli import cli
from tests.rules.test_commands import ALL

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXTS = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]
HELP = [inspect.cleandoc(command.help or "") for _, command in ALL]
LINE = re.compile(r"(?:\$ )?(opsctl [a-z-].*?)(?:  +\S.*)?$")


def typed(texts: list[str]) -> list[str]:
    """The lines that begin with opsctl, without what is said of them beside."""
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    return sorted({match[1] for line in lines if (match := LINE.match(re.sub(r" +(?=--\w)", " ", line)))})


def words_of(line: str) -> list[str]:
    """As a shell hands them to opsctl."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(itertools.takewhile(lambda word: word not in {"|", ">", ">>", ";"}, lexer))[1:]


TYPED = typed([*re.findall(r"^```[a-z]*\n(.*?)^```", "\n".join(TEXTS), re.MULTILINE | re.DOTALL), *HELP])


def test_there_are_commands_to_type() -> None:
    assert len(TYPED) >= 100


@pytest.mark.parametrize("line", TYPED)
def test_a_command_of_readme_docs_or_help_is_understood(line: str) -> None:
    words, context = words_of(line), click.Context(cli, info_name="opsctl")
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        if command.name == "nodes" and words[0] not in command.commands:
            words = ["list", *words]  # which it is short for
        found = command.get_command(context, words[0])
        assert found is not None, f"{line}: no {words[0]!r}"
        command, words = found, words[1:]
    try:
        command.make_context(command.name, words, parent=context)
    except click.BadParameter as error:  # files are the reader's
        assert error.message.endswith("does not exist."), line


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_a_link_of_the_readme_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
