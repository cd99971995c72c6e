"""What an attempt ran with, so that it can be run again: modules, environment, packages, uncommitted changes."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.ports import Runner, TimedOut
from opsctl.settings.loader import read_toml
from opsctl.state.run_dir import Attempt, RunDir

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|PRIVATE|AUTH|WEBHOOK|DSN", re.IGNORECASE)
LOGIN = re.compile(r"(\w[\w+.-]*://)[^/\s@]+@")
HIDDEN = "(hidden)"
INSTALLED_ONLY = "import sys; sys.path[:] = [place for place in sys.path if place]; "
"""The working directory is no package directory. For Pythons of any version: `-P` came with 3.11."""
FREEZE = f"{INSTALLED_ONLY}import runpy; sys.argv[:] = ['pip', 'freeze']; runpy.run_module('pip', run_name='__main__')"
LIST = INSTALLED_ONLY + (
    r"import importlib.metadata as m; print('\n'.join(sorted({f'{d.name}=={d.version}' for d in m.distributions()})))"
)
"""For environments without pip."""


def mask(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what is secret: by its name, and logins inside addresses."""
    return {name: HIDDEN if SECRET.search(name) else mask_logins(value) for name, value in sorted(env.items())}


def mask_logins(text: str) -> str:
    """`https://user:token@host` becomes `https://(hidden)@host`."""
    return LOGIN.sub(rf"\1{HIDDEN}@", text)


def dump(run: RunDir, attempt: Attempt, runner: Runner, env: Mapping[str, str], *, is_over: Callable[[], bool]) -> None:
    """Write it all into the attempt's `repro/`, which is its owner's alone. What cannot be told has no file.

    Takes seconds; once `is_over` nothing more is written. Raises OSError and RunDirError.
    """
    attempt.repro.mkdir(mode=0o700, exist_ok=True)
    modules = [module for module in env.get("LOADEDMODULES", "").split(":") if module]
    run.write(attempt.repro / "modules.txt", "".join(f"{module}\n" for module in modules), mode=0o600)
    run.write(attempt.repro / "env.json", json.dumps(mask(env), indent=1) + "\n", mode=0o600)
    for name, text in _checkout(runner, env.get("SLURM_SUBMIT_DIR") or ".").items():
        _keep(run, attempt.repro / name, text, is_over)
    _keep(run, attempt.repro / "packages.txt", _packages(runner, run), is_over)


def _keep(run: RunDir, path: Path, text: str, is_over: Callable[[], bool]) -> None:
    if text and not is_over():
        run.write(path, mask_logins(text), mode=0o600)


def _packages(runner: Runner, run: RunDir) -> str:
    python = _python(run)
    return _said(runner, [python, "-c", FREEZE], 120) or _said(runner, [python, "-c", LIST], 60)


def _python(run: RunDir) -> str:
    """The interpreter that the trainer runs on, as far as TRAIN.toml tells."""
    train = read_toml(run.config)
    command: Sequence[str] = train.get("command") or ()
    if not command:
        return str(train.get("python") or sys.executable)
    return next((word for word in command if Path(word).name.startswith("python")), "python3")


GIT = ("git", "--no-optional-locks", "-c", "diff.autoRefreshIndex=false", "-c", "core.fsmonitor=false")
"""Looks and touches nothing: a git that is killed while it refreshes the index would leave the checkout locked."""


def _checkout(runner: Runner, at: str) -> dict[str, str]:
    """The state of the checkout that the train was launched from; empty texts if it was not one."""
    git = (*GIT, "-C", at)
    described = _said(runner, [*git, "describe", "--always", "--tags", "--long"])
    changed = _said(runner, [*git, "status", "--porcelain"])
    diff = _said(runner, [*git, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color"])
    return {"git.txt": described + changed, "uncommitted.diff": diff}


def _said(runner: Runner, argv: Sequence[str], timeout: float = 30) -> str:
    with contextlib.suppress(OpsctlError, TimedOut):
        done = runner.run(argv, timeout=timeout)
        return done.out if done.code == 0 else ""
    return ""
