"""Every command of the README quickstart and of the tutorial runs, in order, on a real sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read_script(markdown: str) -> str:
    """Return the commands of all `console` blocks (lines that begin with `$ `) and the whole `sh` blocks."""
    parts: list[str] = []
    for language, block in BLOCK.findall(markdown):
        if language == "sh":
            parts.append(block)
        else:
            parts += [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(parts)


def run_script(script: str, directory: Path, sandbox: str) -> str:
    """Run the commands in one shell and return its output. Any failing command fails the test."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    command = bin_directory / "opsctl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m opsctl "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}", "XDG_STATE_HOME": str(directory / "state")}
    down = [str(command), "sandbox", "down", "--name", sandbox]
    try:
        completed = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=directory,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        subprocess.run(down, env=env, cwd=directory, capture_output=True, timeout=60, check=False)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


@pytest.mark.usefixtures("_programs")
def test_readme_quickstart_runs(tmp_path: Path) -> None:
    script = read_script((ROOT / "README.md").read_text())
    assert script.count("\n") == 5, "the quickstart has six lines"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    output = run_script(script, tmp_path, "default")
    assert re.search(r"counting +running", output), output
    assert "lm loss" in output, output
    assert "none left" in output, output


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
