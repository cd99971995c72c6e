"""The record that makes an attempt reproducible: modules, environment, packages, uncommitted changes.

The full record needs git and pip, and waits for the first step. At the end of an attempt without one the next task
waits: such an attempt gets a record that reads a few files and starts no program.
"""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Runner, TimedOut
from opsctl.base.secret_formats import STRUCK, Secrets, is_secret_name
from opsctl.launch.git_checkout import find_checkout, open_git, read_lines
from opsctl.settings.loader import read_toml
from opsctl.slurm.job_environment import submit_directory
from opsctl.state.files import list_names
from opsctl.state.run_dir import Attempt, RunDir

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CRED|COOKIE|PRIVATE|AUTH|WEBHOOK|DSN|JWT", re.IGNORECASE)
"""A name with one of these anywhere is hidden from the record, which is kept for years."""
LOGIN = re.compile(r"(\w://)[^/\s@]{1,1000}@")
HIDDEN = "(hidden)"
INSTALLED_ONLY = "import sys; sys.path[:] = [path for path in sys.path if path]; "
"""Takes the working directory out of the search path. For any Python: `-P` needs 3.11."""
FREEZE = f"{INSTALLED_ONLY}import runpy; sys.argv[:] = ['pip', 'freeze']; runpy.run_module('pip', run_name='__main__')"
LIST = INSTALLED_ONLY + (
    r"import importlib.metadata as m; print('\n'.join(sorted({f'{d.name}=={d.version}' for d in m.distributions()})))"
)
"""Lists packages in environments without pip."""
GIT_TIMEOUT_S = 30.0
DIFF = ("--no-ext-diff", "--no-textconv", "--no-color")
IGNORED = "--ignore-submodules=dirty"
"""Changes inside a submodule are seen by git there only, with the settings of that repository."""
_PACKAGE = re.compile(r"([A-Za-z0-9][\w.]*)-([^-]+)\.(?:dist|egg)-info")


def mask(env: Mapping[str, str]) -> dict[str, str]:
    """Hide values whose names suggest a secret, and secrets inside other values."""
    return {
        name: HIDDEN if SECRET.search(name) or is_secret_name(name) else mask_logins(value)
        for name, value in sorted(env.items())
    }


def mask_logins(text: str) -> str:
    """Hide secrets of known formats: `https://user:token@host` becomes `https://(hidden)@host`."""
    text = LOGIN.sub(rf"\1{HIDDEN}@", text)
    return Secrets().strike_text(text).replace(STRUCK.decode(), HIDDEN)


def dump_environment(run: RunDir, attempt: Attempt, env: Mapping[str, str]) -> None:
    """Write modules and environment into the attempt's `repro/`, which only the owner can read.

    Raises OSError and RunDirError.
    """
    attempt.repro.mkdir(mode=0o700, exist_ok=True)
    modules = [module for module in env.get("LOADEDMODULES", "").split(":") if module]
    run.write(attempt.repro / "modules.txt", "".join(f"{module}\n" for module in modules), mode=0o600)
    run.write(attempt.repro / "env.json", json.dumps(mask(env), indent=1) + "\n", mode=0o600)


def dump_code(
    run: RunDir, attempt: Attempt, runner: Runner, env: Mapping[str, str], *, is_over: Callable[[], bool]
) -> None:
    """Write the state of the checkout and the packages into the attempt's `repro/`. What is unknown has no file.

    Takes seconds, and neither starts a program nor writes anything once `is_over`. Raises OSError and RunDirError.
    """
    if is_over():
        return
    for name, text in _describe_checkout(runner, submit_directory(env)).items():
        _write_unless_over(run, attempt.repro / name, text, is_over)
    python = find_python(run)
    for program, timeout_s in ((FREEZE, 120), (LIST, 60)):
        packages = "" if is_over() else _read_output(runner, [python, "-c", program], timeout_s)
        if packages:
            _write_unless_over(run, attempt.repro / "packages.txt", packages, is_over)
            return


def _write_unless_over(run: RunDir, path: Path, text: str, is_over: Callable[[], bool]) -> None:
    if text and not is_over():
        run.write(path, mask_logins(text), mode=0o600)


def find_python(run: RunDir) -> str:
    """Return the trainer's interpreter, as far as train.toml names one."""
    train = read_toml(run.config)
    command: Sequence[str] = train.get("command") or ()
    if not command:
        return str(train.get("python") or sys.executable)
    return next((word for word in command if Path(word).name.startswith("python")), "python3")


def _describe_checkout(runner: Runner, directory: str) -> dict[str, str]:
    """Return the state of the checkout from which the train was launched; nothing if there was none."""
    with contextlib.suppress(OpsctlError, TimedOut, OSError, ValueError):
        if checkout := find_checkout(Path(directory)):
            with open_git(runner, checkout) as git:
                described = read_lines(git, "describe", "--always", "--tags", "--long", timeout_s=GIT_TIMEOUT_S)
                changed = read_lines(git, "status", "--porcelain", IGNORED, timeout_s=GIT_TIMEOUT_S)
                diff = read_lines(git, "diff", "HEAD", *DIFF, IGNORED, timeout_s=GIT_TIMEOUT_S)
            return {"git.txt": described + changed, "uncommitted.diff": diff}
    return {}


def _read_output(runner: Runner, argv: Sequence[str], timeout_s: float) -> str:
    with contextlib.suppress(OpsctlError, TimedOut):
        completed = runner.run(argv, timeout=timeout_s)
        return completed.out if completed.code == 0 else ""
    return ""


def dump_code_from_files(run: RunDir, attempt: Attempt, env: Mapping[str, str]) -> None:
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
    try:
        checkout = find_checkout(directory)
        return checkout.read_commit() if checkout else ""
    except (OSError, ValueError):
        return ""


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
