"""docs/reference/settings.md holds every key of both settings files, as the code declares them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.tables import read_package_table
from opsctl.cli import cli
from opsctl.cli.config import _schema
from opsctl.launch.render import read_job_variables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
TEXT = PAGE.read_text()


def read_reference(file: str) -> str:
    return CliRunner().invoke(cli, ["config", "reference", file]).stdout


@pytest.mark.parametrize("file", ["site", "train"])
def test_page_holds_reference(file: str) -> None:
    """Run `python -m tests.rules.test_settings_docs` after a change to write the page again."""
    assert read_reference(file) in TEXT


@pytest.mark.parametrize("file", ["site", "train"])
def test_every_setting_has_a_description(file: str) -> None:
    assert [line for line in read_reference(file).splitlines() if line.endswith("|  |")] == []


def test_every_description_is_of_a_table() -> None:
    tables = {name for kind in ("site", "train") for name in {**_schema(kind)["$defs"], _schema(kind)["title"]: {}}}
    assert set(read_package_table("settings/descriptions.toml")) <= tables


def test_every_placeholder_is_named() -> None:
    assert [name for name in read_job_variables()["placeholders"] if f"{{{{ {name} }}}}" not in TEXT] == []


def write_page(path: Path) -> None:
    """Write both references; the introduction above them stays."""
    intro = TEXT.partition("## site.toml\n")[0]
    path.write_text(f"{intro}## site.toml\n\n{read_reference('site')}\n## TRAIN.toml\n\n{read_reference('train')}")


if __name__ == "__main__":
    write_page(PAGE)
