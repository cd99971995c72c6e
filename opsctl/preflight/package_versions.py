"""Which torch and which NCCL the trainer will run with, as far as that can be known before it does."""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import metadata

from opsctl.errors import OpsctlError
from opsctl.ports import Runner, TimedOut
from opsctl.settings.loader import TrainSettings
from opsctl.state.run_dir import Attempt, RunDir

NAMES = {
    "torch": "torch",
    "deepspeed": "deepspeed",
    "nvidia-nccl-cu11": "nccl",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
}
"""Packages, and what we call what is in them."""
ASK = """import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))"""


def versions(train: TrainSettings, run: RunDir, runner: Runner) -> dict[str, str]:
    """Of the embedded trainer's interpreter, else of the last attempt's list of packages; empty where neither tells."""
    if train.command:
        return _named(_of_last_attempt(run))
    if train.python and train.python != sys.executable:
        with contextlib.suppress(OpsctlError, TimedOut, ValueError):
            done = runner.run((train.python, "-P", "-c", ASK, *NAMES), timeout=10)
            return _named(json.loads(done.out)) if done.code == 0 else {}
        return {}
    found = {}
    for name in NAMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return _named(found)


def _named(found: dict[str, str]) -> dict[str, str]:
    return {NAMES[name]: version for name, version in found.items() if name in NAMES}


def _of_last_attempt(run: RunDir) -> dict[str, str]:
    """From its `packages.txt`, which pip freeze wrote."""
    newest = max((attempt for attempt in run.attempts() if attempt.repro.is_dir()), key=_when, default=None)
    if newest is None:
        return {}
    with contextlib.suppress(OSError):
        lines = (newest.repro / "packages.txt").read_text(encoding="utf-8").splitlines()
        return {name.lower(): version for line in lines for name, _, version in [line.partition("==")] if version}
    return {}


def _when(attempt: Attempt) -> float:
    return attempt.path.stat().st_mtime
