"""Run the commands of a page of the documentation, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def run_script(script: str, directory: Path, sandbox: str, *, timeout_s: float = 300) -> str:
    """Run the commands in one shell and return its output. Any failing command fails the test."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    for name, words in (("opsctl", " -P -m opsctl"), ("python", "")):
        command = bin_directory / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        command.chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}", "XDG_STATE_HOME": str(directory / "state")}
    down = [str(bin_directory / "opsctl"), "sandbox", "down", "--name", sandbox]
    try:
        completed = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=directory,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    finally:
        subprocess.run(down, env=env, cwd=directory, capture_output=True, timeout=60, check=False)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout
