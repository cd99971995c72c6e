"""docs/settings.md holds every key of both settings files, as it is in the code."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.render import RUNTIME

DOCS = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


def reference(what: str) -> str:
    return CliRunner().invoke(cli, ["config", "reference", what]).stdout


@pytest.mark.parametrize("what", ["site", "train"])
def test_the_reference_is_what_the_tables_say(what: str) -> None:
    """After a change: `python -m tests.rules.test_settings_docs` writes it anew."""
    assert reference(what) in DOCS


@pytest.mark.parametrize("what", ["site", "train"])
def test_every_setting_says_what_it_is(what: str) -> None:
    assert [line for line in reference(what).splitlines() if line.endswith("|  |")] == []


@pytest.mark.parametrize("name", RUNTIME)
def test_every_placeholder_is_named(name: str) -> None:
    assert f"{{{{ {name} }}}}" in DOCS


def write_anew(path: Path) -> None:
    """What stands above the two files' sections stays."""
    intro = DOCS.partition("## site.toml\n")[0]
    path.write_text(f"{intro}## site.toml\n\n{reference('site')}\n## TRAIN.toml\n\n{reference('train')}")


if __name__ == "__main__":
    write_anew(Path(__file__).parents[2] / "docs" / "settings.md")
