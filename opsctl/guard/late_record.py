"""The record of code and packages of an attempt that ended before its first step, from files alone.

The full record needs git and pip, and waits for the first step. At the end of an attempt the next task waits, so
this record reads a few files and starts no program.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from opsctl.guard.reproduction import find_python
from opsctl.slurm.job_environment import submit_directory
from opsctl.state.files import list_names, read_text
from opsctl.state.run_dir import Attempt, RunDir

MAX_REF_BYTES = 1 << 20
MAX_PARENTS = 64
_PACKAGE = re.compile(r"([A-Za-z0-9][\w.]*)-([^-]+)\.(?:dist|egg)-info")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def write_late_record(run: RunDir, attempt: Attempt, env: Mapping[str, str]) -> None:
    """Write the commit of the checkout and the names of the installed packages, where no record exists.

    Raises OSError and RunDirError.
    """
    attempt.repro.mkdir(mode=0o700, exist_ok=True)
    git, packages = attempt.repro / "git.txt", attempt.repro / "packages.txt"
    if not git.exists() and (commit := read_commit(Path(submit_directory(env)))):
        run.write(git, f"{commit}\n# read at the end of the attempt: changes of files are unknown\n", mode=0o600)
    if not packages.exists() and (names := list_packages(find_python(run), env.get("PATH", ""))):
        run.write(packages, "# listed at the end of the attempt\n" + "\n".join(names) + "\n", mode=0o600)


def read_commit(directory: Path) -> str:
    """Return the commit that is checked out in a directory or above it; empty if unknown."""
    for place in islice((directory, *directory.parents), MAX_PARENTS):
        if (place / ".git").exists():
            try:
                return _read_head(_find_git_directory(place / ".git"))
            except (OSError, ValueError):
                return ""
    return ""


def _find_git_directory(path: Path) -> Path:
    """Return the directory of a checkout's own files; in a worktree, `.git` is a file that names it."""
    if path.is_dir():
        return path
    return path.parent / read_text(path, MAX_REF_BYTES).removeprefix("gitdir:").strip()


def _read_head(directory: Path) -> str:
    head = read_text(directory / "HEAD", MAX_REF_BYTES).strip()
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else ""
    name = head.removeprefix("ref:").strip()
    shared = directory
    if (directory / "commondir").exists():
        shared = directory / read_text(directory / "commondir", MAX_REF_BYTES).strip()
    try:
        commit = read_text(shared / name, MAX_REF_BYTES).strip()
    except FileNotFoundError:
        rows = (row.split() for row in read_text(shared / "packed-refs", MAX_REF_BYTES).splitlines())
        commit = next((row[0] for row in rows if row[1:] == [name]), "")
    return commit if _COMMIT.fullmatch(commit) else ""


def list_packages(python: str, search_path: str) -> list[str]:
    """Return `name==version` of the packages of an interpreter, from the names of their metadata; empty if unknown."""
    program = shutil.which(python, path=search_path) or shutil.which(python)
    if program is None:
        return []
    prefix = Path(program).parent.parent  # not resolved: that of a virtual environment
    places = [Path(entry) for entry in sys.path] if program == sys.executable else []
    places += [*prefix.glob("lib*/python3*/site-packages"), *prefix.glob("lib/python3/dist-packages")]
    found: set[str] = set()
    for place in places:
        try:
            matches = map(_PACKAGE.fullmatch, list_names(place))
        except OSError:
            continue
        found.update(f"{match[1]}=={match[2]}" for match in matches if match)
    return sorted(found)
