"""Every command of README, tutorial and how-tos runs, in order, on a real sandbox, and prints what the page shows."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.pages import BLOCK, MARK, ROOT, find_differences, list_commands, read_script, run_script

pytestmark = pytest.mark.timeout(1000)

HOW_TOS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
INSTEAD: dict[str, str] = {row["shown"]: row.get("typed", ":") for row in HOW_TOS["instead"]}


@pytest.mark.usefixtures("_programs")
def test_readme_quickstart_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    output = run_script(read_script((ROOT / "README.md").read_text(), INSTEAD), tmp_path, "default")
    assert re.search(r"counting +running", output), output
    assert "lm loss" in output, output
    assert "none left" in output, output


@pytest.mark.long
@pytest.mark.usefixtures("_programs")
def test_tutorial_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    """The train loses a node, resumes on two others from its newest checkpoint, and finishes.

    Slurm chooses the two: newer versions free the healthy node of the first attempt before the second starts.
    """
    page = (ROOT / "docs" / "tutorial.md").read_text()
    output = run_script(read_script(page, INSTEAD), tmp_path, "tutorial")
    assert re.search(r"^1_2\.0 .* finished +node\[00(2-003|3-004)\]", output, re.MULTILINE), output
    assert "\n=====\n".join(find_differences(page, output)) == ""


@pytest.mark.long
@pytest.mark.usefixtures("_programs")
def test_how_tos_run_and_print_what_they_show(tmp_path: Path) -> None:
    pages = [(row["before"], (ROOT / "docs" / "how-to" / row["page"]).read_text()) for row in HOW_TOS["pages"]]
    story = "\n".join(f"```sh\n{before}\n```\n{page}" for before, page in pages)
    output = run_script(read_script(story, INSTEAD), tmp_path, "pages")
    assert "\n=====\n".join(find_differences(story, output)) == ""


def test_every_how_to_is_run() -> None:
    """What is typed otherwise, and output that no command prints, stands in the table with its reason."""
    pages = {path.name: path.read_text() for path in (ROOT / "docs" / "how-to").glob("*.md")}
    assert sorted(pages) == sorted(row["page"] for row in HOW_TOS["pages"])
    pages |= {name: (ROOT / name).read_text() for name in ("README.md", "docs/tutorial.md")}
    shown = {command for page in pages.values() for command, _ in list_commands(page)}
    assert sorted(set(INSTEAD) - shown) == []
    texts = {block for page in pages.values() for language, block in BLOCK.findall(page) if language == "text"}
    assert texts == {row["shown"] for row in HOW_TOS["not_printed_here"]}


def test_output_that_a_page_shows_otherwise_is_found() -> None:
    page = "```console\n$ opsctl a\none node00[1-2] 2s\n…\n$ opsctl b\n```\n"
    assert find_differences(page, f"{MARK}\n+ opsctl a\none node00[3-4] 1m 3s\nmore\n{MARK}\n") == []
    other_word, more = find_differences(page, f"{MARK}\ntwo node00[3-4] 3s\n{MARK}\nunshown\n")
    assert (other_word.split()[:3], more.split()[-1]) == (["$", "opsctl", "a"], "unshown")
