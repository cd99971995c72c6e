"""What tests on real Slurms share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind

OPSCTL = (sys.executable, "-m", "opsctl", "sandbox")
Up = Callable[..., Sandbox]


def run_slurm(sandbox: Sandbox, *argv: str) -> str:
    """What a Slurm command, which must succeed, prints on this sandbox."""
    env = {**os.environ, **sandbox.env()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=True).stdout


def wait_until(true: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {seconds:g} s"
        time.sleep(0.03)


def save_controller_state(sandbox: Sandbox) -> Callable[[], None]:
    """Has the controller killed, and come back with what it has on its disk now: as where it had no time to write down
    what came later."""
    state = sandbox.record.site.home / "state"
    before = state.with_name("state-before")
    sandbox.fault("controller", FaultKind.STOP)  # its files come and go
    shutil.copytree(state, before)
    sandbox.fault("controller", FaultKind.RESUME)

    def forget() -> None:
        sandbox.fault("controller", FaultKind.KILL)
        shutil.rmtree(state)
        before.rename(state)
        sandbox.fault("controller", FaultKind.RESTART)

    return forget
