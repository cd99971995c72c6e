"""Every command, option and linked file in README, docs and help exists."""

import ast
import inspect
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import click
from pydantic import BaseModel, ValidationError

from opsctl.cli import cli
from opsctl.settings.loader import SiteSettings, TrainSettings, lists_to_tuples
from opsctl.trainer.config import TrainerConfig
from tests.rules.test_commands import ALL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [path.read_text() for path in PAGES if not path.match("reference/cli*.md")]  # those are the help itself
HELP = [inspect.cleandoc(command.help or "") for _, command in ALL]
LINE = re.compile(r"(?:\$ )?(opsctl [a-z-].*?)(?:  +\S.*)?$")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
MAX_README_LINES = 150


def find_commands(texts: list[str]) -> list[str]:
    """Return the lines that begin with opsctl, without the explanation after them."""
    commands = set()
    for line in "\n".join(texts).replace("\\\n", " ").splitlines():
        match = LINE.match(re.sub(r" +(?=--\w)", " ", line))
        if match:
            commands.add(match[1])
    return sorted(commands)


def split_words(line: str) -> list[str]:
    """Split a line as a shell does, up to the first redirection or pipe, without the leading `opsctl`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(itertools.takewhile(lambda word: word not in {"|", ">", ">>", ";", "&&"}, lexer))[1:]


BLOCKS = re.findall(r"^ *```[a-z]*[^\n]*\n(.*?)^ *```", "\n".join(TEXTS), re.MULTILINE | re.DOTALL)
COMMAND_LINES = find_commands([*(inspect.cleandoc(block) for block in BLOCKS), *HELP])


def test_there_are_commands_to_check() -> None:
    assert len(COMMAND_LINES) >= 100


def check_command(line: str) -> str:
    """Return what is wrong with a documented command, with the reason; empty if opsctl understands it."""
    words, context = split_words(line), click.Context(cli, info_name="opsctl")
    command: click.Command = cli
    if words[0].startswith("-"):
        _, words, _ = cli.make_parser(context).parse_args(words)  # options before the command
    while isinstance(command, click.Group) and words:
        if command.name == "nodes" and words[0] not in command.commands:
            words = ["list", *words]  # `opsctl nodes` is short for `opsctl nodes list`
        subcommand = command.get_command(context, words[0])
        if subcommand is None:
            return f"{line}: no {words[0]!r}"
        command, words = subcommand, words[1:]
    try:
        command.make_context(command.name, words, parent=context)
    except click.BadParameter as error:
        # Files of the reader need not exist.
        return "" if error.message.endswith("does not exist.") else f"{line}: {error.message}"
    except click.UsageError as error:
        return f"{line}: {error.message}"
    return ""


def test_documented_commands_are_understood() -> None:
    assert list(filter(None, map(check_command, COMMAND_LINES))) == []


def test_commands_of_remedies_are_understood() -> None:
    """The tuples that begin with "opsctl"; what is computed stands as a name."""
    lines = []
    for path in (*ROOT.glob("watchdogs/*.py"), *ROOT.glob("opsctl/*/*.py")):
        tuples = [node.elts for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Tuple)]
        words = [[ast.unparse(word) for word in elements] for elements in tuples]
        lines += [
            " ".join(re.sub(r"^[^'].*", "x", word).strip("'") for word in line)
            for line in words
            if line[:1] == ["'opsctl'"]
        ]
    assert len(lines) >= 20
    assert list(filter(None, map(check_command, filter(lambda line: "opsctl x" not in line, lines)))) == []


def find_refused(block: str) -> list[str]:
    """Return what no settings file accepts of the block, a part of one. What is missing may stand in another part."""
    tables, refused = tomllib.loads(block), []
    files: list[tuple[type[BaseModel], object]] = [
        (file, lists_to_tuples(tables)) for file in (SiteSettings, TrainSettings)
    ]
    for model, table in [(TrainerConfig, tables["trainer"])] if "trainer" in tables else files:
        try:
            model.model_validate(table)
        except ValidationError as error:
            wrong = [each for each in error.errors() if each["type"] not in {"missing", "union_tag_not_found"}]
            refused.append([f"{each['loc']}: {each['msg']}" for each in wrong if "no channel " not in each["msg"]])
        else:
            return []
    return min(refused, key=len)


def test_documented_settings_are_accepted() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", "\n".join(TEXTS), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 20
    assert list(itertools.chain.from_iterable(map(find_refused, blocks))) == []


def test_links_lead_to_files() -> None:
    dead = []
    for page in PAGES:
        links = LINK.findall(page.read_text())
        dead += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert dead == []


def test_readme_stays_short() -> None:
    assert len(TEXTS[0].splitlines()) <= MAX_README_LINES


def test_index_lists_records_once() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^\| \d{4} \| \[.*?\]\((.*?)\)", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in folder.glob("0*.md"))
    numbers = [name[:4] for name in listed]
    assert len(numbers) == len(set(numbers)), "two records with one number"


def test_promises_of_the_threat_model_name_tests() -> None:
    model = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
    assert [name for name in re.findall(r"`(tests/[\w./-]+)`", model) if not (ROOT / name).exists()] == []
    promises = re.findall(r"^\| (.*) \|$", model.partition("## Promised")[2].partition("\nAttacks of")[0], re.MULTILINE)
    assert [promise for promise in promises[1:] if "`tests/" not in promise] == []
