"""Run the commands of a page of the documentation, in order, and compare what they print with what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = "@@@ command"
UNSHOWN = re.compile(r"\++ |\d{4}-\d\d-\d\dT\S+ INFO |other users of this machine may submit ")
"""Lines of the shell's trace, of the log on stderr, and what only root sees."""
WILDCARDS = {
    r"…": ".*",
    r"/home/me\S*": r"\S+",
    r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?": r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?",
    r"(?:\d+(?:\.\d+)?(?:s|m|h|d)\b ?)+": r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d)\b ?)+",
    r"\b[0-9a-f]{12}\b": "[0-9a-f]{12}",
    r"\d+(?:\.\d+)?(?:E[+-]\d+)?": r"\d+(?:\.\d+)?(?:E[+-]\d+)?",
    r"[▁-█↑]+": "[▁-█↑]*",
    r"\broot\b": r"\w+",
    r"\s+": r"\s*",
}
"""What a page may show otherwise: `…`, paths, times, durations, ids, numbers, bars, users and blanks."""


def read_script(markdown: str, mark: str = "") -> str:
    """Return the commands of all `console` blocks (lines that begin with `$ `) and the whole `sh` blocks.

    With `mark`, it is printed before every command of a `console` block.
    """
    parts: list[str] = []
    for language, block in BLOCK.findall(markdown):
        if language == "sh":
            parts.append(block)
        for line in block.splitlines() if language == "console" else ():
            if line.startswith("$ "):
                parts += [*([f"echo '{mark}'"] if mark else []), line.removeprefix("$ ")]
    return "\n".join(parts)


def find_differences(markdown: str, output: str) -> list[str]:
    """Return the commands whose output differs from what the page shows. `output` is that of the script with MARK."""
    shown = [block for language, block in BLOCK.findall(markdown) if language == "console"]
    expected = re.split(r"^\$ ", "".join(shown), flags=re.MULTILINE)[1:]
    printed = re.split(rf"^{MARK}\n", output, flags=re.MULTILINE)[1:]
    assert len(expected) == len(printed)
    differences = []
    for text, lines in zip(expected, printed, strict=True):
        command, *wanted = text.splitlines()
        got = [line for line in lines.splitlines() if not UNSHOWN.match(line)]
        pattern = "".join("(?:.*\n)*" if line.strip() == "…" else f"{to_pattern(line)}\n" for line in wanted)
        if not re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in got).rstrip("\n") + "\n" * bool(got)):
            differences.append("\n".join([f"$ {command}", *wanted, "--- but it printed:", *got]))
    return differences


def to_pattern(line: str) -> str:
    """Return the pattern of a shown line."""
    wildcard = re.compile("|".join(f"({place})" for place in WILDCARDS))
    pieces, end = [], 0
    for match in wildcard.finditer(line.rstrip()):
        pieces += [re.escape(line[end : match.start()]), list(WILDCARDS.values())[(match.lastindex or 1) - 1]]
        end = match.end()
    return "".join([*pieces, re.escape(line.rstrip()[end:])])


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
