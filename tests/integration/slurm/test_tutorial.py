"""Every command of the README quickstart and of the tutorial runs, in order, on a real sandbox."""

import re
from pathlib import Path

import pytest

from tests.support.pages import MARK, ROOT, find_differences, read_script, run_script


@pytest.mark.usefixtures("_programs")
def test_readme_quickstart_runs(tmp_path: Path) -> None:
    script = read_script((ROOT / "README.md").read_text())
    assert script.count("\n") == 5, "the quickstart has six lines"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    output = run_script(script, tmp_path, "default")
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
    output = run_script(read_script(page, MARK), tmp_path, "tutorial")
    assert re.search(r"^1_2\.0 .* finished +node\[00(2-003|3-004)\]", output, re.MULTILINE), output
    assert "\n=====\n".join(find_differences(page, output)) == ""


def test_output_that_a_page_shows_otherwise_is_found() -> None:
    page = "```console\n$ opsctl a\none node00[1-2] 2s\n…\n$ opsctl b\n```\n"
    assert find_differences(page, f"{MARK}\n+ opsctl a\none node00[3-4] 1m 3s\nmore\n{MARK}\n") == []
    other_word, more = find_differences(page, f"{MARK}\ntwo node00[3-4] 3s\n{MARK}\nunshown\n")
    assert (other_word.split()[:3], more.split()[-1]) == (["$", "opsctl", "a"], "unshown")
