"""Every command of the README quickstart and of the tutorial runs, in order, on a real sandbox."""

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, read_script, run_script


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
def test_tutorial_runs(tmp_path: Path) -> None:
    """The train loses a node, resumes on two others from its newest checkpoint, and finishes.

    Slurm chooses the two: newer versions free the healthy node of the first attempt before the second starts.
    """
    output = run_script(read_script((ROOT / "docs" / "tutorial.md").read_text()), tmp_path, "tutorial")
    assert "first-train goes on without node001" in output, output
    assert re.search(r"^1_1\.0 .* node-failed +node\[001-002\]", output, re.MULTILINE), output
    assert re.search(r"^1_2\.0 .* finished +node\[00(2-003|3-004)\]", output, re.MULTILINE), output
    assert re.search(r"last attempt +\d+_1\.0 (killed|stopped|exited)", output), output
    assert "none left" in output, output
