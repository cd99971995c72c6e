"""A separate process that runs watch cycles on request."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.endurance.soak.soak_cluster import Field

ROOT = Path(__file__).parents[3]


class Watcher:
    """Starts a cycle on request, and answers when the cycle is over."""

    def __init__(self, field: Field, programs: Path) -> None:
        env = {
            **os.environ,
            **field.sandbox.env(),
            "XDG_STATE_HOME": str(field.place / "state"),
            "PYTHONPATH": str(ROOT),
        }
        argv = [sys.executable, "-m", "tests.endurance.soak.watcher", str(field.site), str(programs)]
        self.process = subprocess.Popen(
            argv, env=env, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start_cycle(self, ahead: timedelta, *, skew: timedelta, node: str) -> None:
        """Start a cycle on `node`, at the time `ahead` of this machine's clock, by a clock that is wrong by `skew`."""
        assert self.process.stdin
        clocks = {"ahead_s": ahead.total_seconds(), "skew_s": skew.total_seconds(), "node": node}
        self.process.stdin.write(f"{json.dumps(clocks)}\n")
        self.process.stdin.flush()

    def read_answer(self) -> dict[str, Any]:
        """Wait for the end of the cycle. Return its result; only `died` if the process ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"died": f"exit {self.process.wait()}"}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
