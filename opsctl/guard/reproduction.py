"""The record that makes an attempt reproducible: modules, environment, packages, uncommitted changes."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Runner, TimedOut
from opsctl.settings.loader import read_toml
from opsctl.slurm.job_environment import submit_directory
from opsctl.state.run_dir import Attempt, RunDir

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|PRIVATE|AUTH|WEBHOOK|DSN", re.IGNORECASE)
LOGIN = re.compile(r"(\w[\w+.-]*://)[^/\s@]+@")
HIDDEN = "(hidden)"
INSTALLED_ONLY = "import sys; sys.path[:] = [path for path in sys.path if path]; "
"""Takes the working directory out of the search path. For any Python: `-P` needs 3.11."""
FREEZE = f"{INSTALLED_ONLY}import runpy; sys.argv[:] = ['pip', 'freeze']; runpy.run_module('pip', run_name='__main__')"
LIST = INSTALLED_ONLY + (
    r"import importlib.metadata as m; print('\n'.join(sorted({f'{d.name}=={d.version}' for d in m.distributions()})))"
)
"""Lists packages in environments without pip."""


def mask(env: Mapping[str, str]) -> dict[str, str]:
    """Hide values whose names suggest a secret, and logins inside addresses."""
    return {name: HIDDEN if SECRET.search(name) else mask_logins(value) for name, value in sorted(env.items())}


def mask_logins(text: str) -> str:
    """`https://user:token@host` becomes `https://(hidden)@host`."""
    return LOGIN.sub(rf"\1{HIDDEN}@", text)


def dump(run: RunDir, attempt: Attempt, runner: Runner, env: Mapping[str, str], *, is_over: Callable[[], bool]) -> None:
    """Write the whole record. Raises OSError and RunDirError."""
    dump_environment(run, attempt, env)
    dump_code(run, attempt, runner, env, is_over=is_over)


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


GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "diff.autoRefreshIndex=false",
    "-c",
    "core.fsmonitor=false",
)
"""Reads without writing: a git killed while it refreshes the index would leave the checkout locked."""


def _describe_checkout(runner: Runner, directory: str) -> dict[str, str]:
    """Return the state of the checkout from which the train was launched; empty texts if there was none."""
    git = (*GIT, "-C", directory)
    described = _read_output(runner, [*git, "describe", "--always", "--tags", "--long"])
    changed = _read_output(runner, [*git, "status", "--porcelain"])
    diff = _read_output(runner, [*git, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color"])
    return {"git.txt": described + changed, "uncommitted.diff": diff}


def _read_output(runner: Runner, argv: Sequence[str], timeout_s: float = 30) -> str:
    with contextlib.suppress(OpsctlError, TimedOut):
        completed = runner.run(argv, timeout=timeout_s)
        return completed.out if completed.code == 0 else ""
    return ""
