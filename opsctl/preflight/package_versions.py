"""Versions of torch and NCCL that the trainer will use, as far as known before it starts."""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import metadata

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Runner, TimedOut
from opsctl.settings.loader import TrainSettings
from opsctl.state.files import MAX_RECORD_BYTES, read_text
from opsctl.state.run_dir import Attempt, RunDir

NAMES = {
    "torch": "torch",
    "deepspeed": "deepspeed",
    "nvidia-nccl-cu11": "nccl",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
}
"""Packages, and the software that each package holds."""
LIST_VERSIONS = """import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))"""


def versions(train: TrainSettings, run: RunDir, runner: Runner) -> dict[str, str]:
    """Return versions from the embedded trainer's interpreter, else from the last attempt; empty if unknown."""
    if train.command:
        return _by_software(_list_of_last_attempt(run))
    if train.python and train.python != sys.executable:
        with contextlib.suppress(OpsctlError, TimedOut, ValueError):
            completed = runner.run((train.python, "-P", "-c", LIST_VERSIONS, *NAMES), timeout=10)
            return _by_software(json.loads(completed.out)) if completed.code == 0 else {}
        return {}
    installed = {}
    for name in NAMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return _by_software(installed)


def _by_software(packages: dict[str, str]) -> dict[str, str]:
    return {NAMES[name]: version for name, version in packages.items() if name in NAMES}


def _list_of_last_attempt(run: RunDir) -> dict[str, str]:
    """Read `packages.txt` of the last attempt, in the format of pip freeze."""
    newest = max((attempt for attempt in run.attempts() if attempt.repro.is_dir()), key=_read_mtime, default=None)
    if newest is None:
        return {}
    with contextlib.suppress(OSError, ValueError):
        lines = read_text(newest.repro / "packages.txt", MAX_RECORD_BYTES).splitlines()
        rows = (line.partition("==") for line in lines)
        return {name.lower(): version for name, _, version in rows if version}
    return {}


def _read_mtime(attempt: Attempt) -> float:
    return attempt.path.stat().st_mtime
