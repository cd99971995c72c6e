"""What tests on real Slurms share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from opsctl.sandbox.cluster import Sandbox

OPSCTL = (sys.executable, "-m", "opsctl", "sandbox")
Up = Callable[..., Sandbox]


def slurm_says(sandbox: Sandbox, *argv: str) -> str:
    """What a Slurm command, which must succeed, prints on this sandbox."""
    env = {**os.environ, **sandbox.env()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout


def wait_until(true: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {seconds:g} s"
        time.sleep(0.03)
