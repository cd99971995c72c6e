"""Run the commands of pages of the documentation, in order, and compare what they print with what the pages show."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.cases import read_table

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "@@@ command"
TRACE = re.compile(r"\++ ")
UNSHOWN = re.compile(r"\++ |\d{4}-\d\d-\d\dT\S+ INFO |other users of this machine may submit ")
"""Lines of the shell's trace, of the log on stderr, and what only root sees."""
WILDCARDS: dict[str, str] = read_table(__file__, "wildcards")
"""What a page may show otherwise: `…`, paths, times, durations, ids, numbers, bars, users and blanks."""


def list_commands(markdown: str) -> list[tuple[str, list[str] | None]]:
    """Return the commands of a page with the lines shown below each, None where a block shows no output.

    Commands are `sh` blocks, the lines of `console` blocks that begin with `$ `, and every line of a block without a
    language, up to the explanation after two blanks.
    """
    commands: list[tuple[str, list[str] | None]] = []
    for language, block in BLOCK.findall(markdown):
        if language == "console":
            parts = [part.splitlines() for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
            shows = any(part[1:] for part in parts)
            commands += [(part[0], part[1:] if shows else None) for part in parts]
        elif language in {"", "sh"}:
            lines = [block] if language == "sh" else block.splitlines()
            commands += [(re.sub(r"(?<=\S)  +[^-\s].*$", "", line) if not language else line, None) for line in lines]
    return commands


def read_script(markdown: str, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the commands of a page, MARK printed before each. Those in `instead` are replaced."""
    commands = [instead.get(command, command) for command, _ in list_commands(markdown)]
    return "\n".join(f"echo '{MARK}'\n{command}" for command in commands)


def find_differences(markdown: str, output: str) -> list[str]:
    """Return the commands whose output differs from what the page shows. `output` is that of the page's script."""
    printed = re.split(rf"^{MARK}\n", output, flags=re.MULTILINE)[1:]
    differences = []
    for (command, wanted), lines in zip(list_commands(markdown), printed, strict=True):
        if wanted is None:
            continue
        unshown = TRACE if any(map(UNSHOWN.match, wanted)) else UNSHOWN
        got = [line for line in lines.splitlines() if not unshown.match(line)]
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


def run_script(script: str, directory: Path, sandbox: str, *, timeout_s: float = 900) -> str:
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
        subprocess.run(down, env=env, cwd=directory, capture_output=True, timeout=250, check=False)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout
