"""Helpers of the tests on real Slurms."""

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
SLURM_CONF = """\
ClusterName=gone
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
MessageTimeout=1
NodeName=n1
PartitionName=p Nodes=n1
"""
"""Of a Slurm that does not answer."""


def run_slurm(sandbox: Sandbox, *argv: str) -> str:
    """Run a Slurm command on this sandbox and return its output. The command must succeed."""
    env = {**os.environ, **sandbox.env()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=True).stdout


def wait_until(condition: Callable[[], object], seconds: float = 250) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {seconds:g} s"
        time.sleep(0.03)


def save_controller_state(sandbox: Sandbox) -> Callable[[], None]:
    """Copy the controller's state and return a function that kills the controller and restarts it from the copy.

    The controller then has forgotten every later change, as when it dies before it has written its state.
    """
    state = sandbox.record.site.home / "state"
    before = state.with_name("state-before")
    sandbox.fault("controller", FaultKind.STOP)  # a running controller creates and removes files
    shutil.copytree(state, before)
    sandbox.fault("controller", FaultKind.RESUME)

    def forget() -> None:
        sandbox.fault("controller", FaultKind.KILL)
        shutil.rmtree(state)
        before.rename(state)
        sandbox.fault("controller", FaultKind.RESTART)

    return forget
